"""What runs beside a service on one machine: nodes with made-up GPUs, and for a demonstration jobs
that keep them busy. All of it are programs of their own, which talk to the service over HTTP.

children   programs that are started, started again if they end, and ended with us
tether     what ties a program to the one that started it
nodes      agents, each with its own name, key and folder
traffic    the jobs of a demonstration
"""
