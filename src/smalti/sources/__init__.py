"""Sources of images, before Spark reads them: folders with one sub-folder per class, and archives of such folders.

Here: the inventory of a folder (`image_folder`, read it first), the safe unpacking of archives (`archive`), and the
choice of files for validation (`splits`). Not here: reading and decoding the images (`smalti.spark`, `smalti.images`).
"""
