"""The same run on the devices of many machines, put together into one report."""
