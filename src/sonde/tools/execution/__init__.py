"""How tools run programs and fetch values: one at a time, reduced on the device, in program order."""
