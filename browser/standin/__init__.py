"""Stand-ins for packages that Pyodide cannot get here."""
