"""What people read of the results: `gradebook` and `manual` in a spreadsheet, `feedback` and `summary` as pages."""
