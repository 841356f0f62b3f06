"""A finished run again: its pictures and its network (`again`), and metrics of its maps (`evaluation`).

The report stands in `report/`; nothing here explains a picture anew.
"""
