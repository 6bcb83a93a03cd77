"""Measurements, side by side with the alternative in the same run; results/ holds their records."""
