"""Resources: they hold configuration and return objects of the library; nothing here takes long to import."""
