"""Loops over many tensors, which run an operator for each, and what one operator for all saves."""

from typing import Final

KEPT_ON_GPU: Final = 0.1
"""Share of the operators' time on the host that remains: in recordings of ResNets one ``_foreach_``
operator for 62 tensors took as long as two to six operators for one tensor (3 to 10 %), and longer
where the host waited meanwhile. The basis of the cost is an estimate for this reason."""
