"""What is uploaded to an LMS: `gradebooks` writes what Canvas and Moodle import, `feedback_zip` hands the pages out.

canvas, moodle   the two tables: their columns, whose each row is, what their imports do
export           what was exported, however it came
csv_cells        a table in which single cells are changed and every other byte stays
"""
