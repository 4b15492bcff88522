"""Diagnosis of a machine and a place: what does not fit or work, with the remedy, and how fast data sets are read.

Here: `diagnose` with its checks, and `measure_reading`. Neither imports torch or Spark: they are examined through
metadata and processes of their own. Repairs are not made here. Read `doctor.py` first.
"""

from smalti.diagnosis.doctor import diagnose
from smalti.diagnosis.findings import Diagnosis, Finding, State
from smalti.diagnosis.reading_speed import Latency, ReadingSpeed, ReadingSpeeds, measure_reading

__all__ = ["Diagnosis", "Finding", "Latency", "ReadingSpeed", "ReadingSpeeds", "State", "diagnose", "measure_reading"]
