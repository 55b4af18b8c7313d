"""From what users have (attributes, tags, numbers, times) to bags of attribute nodes."""

from spidertensor.estimator.columns.fitted_columns import Checked, FittedColumns
from spidertensor.estimator.columns.schema import Mode, Schema
from spidertensor.estimator.columns.specs import Calendar, Context, Cross, Many, Number, Recent, Value

__all__ = [
    "Calendar",
    "Checked",
    "Context",
    "Cross",
    "FittedColumns",
    "Many",
    "Mode",
    "Number",
    "Recent",
    "Schema",
    "Value",
]
