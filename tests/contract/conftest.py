"""How the property tests run: no deadline (a busy machine is no fault), nothing left in the checkout."""

from hypothesis import settings

settings.register_profile("pod-host", deadline=None, database=None)
settings.load_profile("pod-host")
