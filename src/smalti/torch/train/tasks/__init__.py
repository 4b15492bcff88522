"""The shipped tasks; `TASKS` in `config` is the table of them. They are imported when a run chooses them."""
