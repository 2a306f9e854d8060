"""Recording a running program. The only package that needs torch, and it imports it late."""
