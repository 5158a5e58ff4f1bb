"""Errors of the operator.

    BlockwardenError
    └── OperatorError                    root of what the operator raises on purpose
        ├── SettingsError (ValueError)   an environment variable cannot be used; the process does not start
        ├── InvalidPolicy (ValueError)   a stored TenantPolicy is not what this version of the API allows
        ├── SchemaError                  the API models cannot be said as a CRD; only ever raised while generating
        ├── MissingCRD                   the TenantPolicy kind is not served; the process does not start
        ├── KeyMaterialError (ValueError) a Secret of ours cannot be read; the plan makes it anew and says so
        ├── ReportError                  a pod's internal port gave no report that can be believed
        └── ClusterError                 the apiserver refused or did not answer; the queue tries again later
            ├── Gone                     the object does not exist
            └── Refused                  the apiserver does not take the object as it is: trying again alone mends nothing

A message never holds an object's body: the apiserver quotes values in its refusals, and some of ours are secrets.
"""

from __future__ import annotations

from blockwarden_core.errors import BlockwardenError


class OperatorError(BlockwardenError):
    """Root of every error that the operator raises on purpose."""


class SettingsError(OperatorError, ValueError):
    """A setting cannot be used; the message names the environment variable and what it needs."""


class InvalidPolicy(OperatorError, ValueError):
    """A TenantPolicy cannot be read; the message names the field and never its value."""


class SchemaError(OperatorError):
    """The API models use what a structural schema cannot say."""


class MissingCRD(OperatorError):
    """The cluster does not serve TenantPolicies."""


class KeyMaterialError(OperatorError, ValueError):
    """Key material in a Secret of ours is damaged."""


class ReportError(OperatorError):
    """No report from a pod: unreachable, not its certificate, or not a report."""


class ClusterError(OperatorError):
    """A call to the apiserver failed."""


class Gone(ClusterError):
    """The object is not there."""


class Refused(ClusterError):
    """The apiserver, or what it asks, does not take the object as it is.

    Args:
        status: the HTTP status: 400, 403 or 422.
        reason: the apiserver's word for it.
        fields: the paths of the wrong fields, without values; none where the apiserver names none.
    """

    def __init__(self, message: str, *, status: int, reason: str, fields: tuple[str, ...]) -> None:
        super().__init__(message)
        self.status, self.reason, self.fields = status, reason, fields
