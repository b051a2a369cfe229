"""Command `doctor`: checks this machine and suggests an action for each problem."""

from trainer_core.system.doctor.finding import Finding
from trainer_core.system.doctor.report import diagnose, format_findings

__all__ = ["Finding", "diagnose", "format_findings"]
