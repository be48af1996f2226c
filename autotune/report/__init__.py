"""What people see: tables, plots, the HTML page, the dashboard."""
