"""Selectors of row groups by a stored index, which are refused."""

from smalti.compat.petastorm.refused import FILTERS_INSTEAD, refused_class

RowGroupSelectorBase = refused_class("RowGroupSelectorBase", __name__, FILTERS_INSTEAD)
SingleIndexSelector = refused_class("SingleIndexSelector", __name__, FILTERS_INSTEAD)
IntersectIndexSelector = refused_class("IntersectIndexSelector", __name__, FILTERS_INSTEAD)
UnionIndexSelector = refused_class("UnionIndexSelector", __name__, FILTERS_INSTEAD)
