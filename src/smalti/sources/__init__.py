"""Sources of images, before Spark reads them: folders with one sub-folder per class, and archives of such folders.

Here: the inventory of a folder and the choice of files for validation (`image_folder`, read it first), and the safe
unpacking of archives (`archive`). Not here: reading and decoding the images (`smalti.spark`, `smalti.images`).
"""
