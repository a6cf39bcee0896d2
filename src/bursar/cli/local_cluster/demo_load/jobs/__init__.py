"""The programs that demo jobs run. They import nothing of Bursar."""
