"""The page of all runs on disk: table, details of one, comparison of several."""

from app.views.runs.page import RunsPage as RunsPage
