"""Main window: menus, run bar, banners, tray, and the controllers that belong to no page."""
