"""The DBFS API 2.0: blocks of at most 1 MB in base64, writes by handle, listings without pages."""

import base64
import json
import time

DBFS = "/api/2.0/dbfs/"
BLOCK = 1 << 20


class DbfsCalls:
    """A mixin for handlers whose server has `dbfs`, `dbfs_folders`, `handles` and `changed`."""

    def on_dbfs(self, call, query, body):
        arguments = {name: values[0] for name, values in query.items()} | (json.loads(body) if body else {})
        getattr(self, "dbfs_" + call.replace("-", "_"))(**arguments)

    def dbfs_put(self, path, contents, overwrite=False):
        data = base64.b64decode(contents)
        if len(data) > BLOCK:
            return self.fault(400, "MAX_BLOCK_SIZE_EXCEEDED")
        if self._refused(path, overwrite):
            return None
        self._store(path, data)
        return self.say()

    def dbfs_create(self, path, overwrite=False):
        if self._refused(path, overwrite):
            return None
        handle = next(self.server.numbers)
        self.server.handles[handle] = (path, [])
        return self.say(handle=handle)

    def dbfs_add_block(self, handle, data):
        block = base64.b64decode(data)
        if len(block) > BLOCK:
            return self.fault(400, "MAX_BLOCK_SIZE_EXCEEDED")
        if handle not in self.server.handles:
            return self.fault(404, "RESOURCE_DOES_NOT_EXIST")
        self.server.handles[handle][1].append(block)
        return self.say()

    def dbfs_close(self, handle):
        if handle not in self.server.handles:
            return self.fault(404, "RESOURCE_DOES_NOT_EXIST")
        path, blocks = self.server.handles.pop(handle)
        self._store(path, b"".join(blocks))
        return self.say()

    def dbfs_read(self, path, offset=0, length=500_000):
        if int(length) > BLOCK:
            return self.fault(400, "MAX_READ_SIZE_EXCEEDED")
        if path in self.server.dbfs_folders:
            return self.fault(400, "INVALID_PARAMETER_VALUE")
        if path not in self.server.dbfs:
            return self.fault(404, "RESOURCE_DOES_NOT_EXIST")
        data = self.server.dbfs[path][int(offset) : int(offset) + int(length)]
        return self.say(bytes_read=len(data), data=base64.b64encode(data).decode())

    def dbfs_get_status(self, path):
        if path not in self.server.dbfs and path not in self.server.dbfs_folders:
            return self.fault(404, "RESOURCE_DOES_NOT_EXIST")
        return self.say(**self._status(path))

    def dbfs_list(self, path):
        server = self.server
        if path in server.dbfs:
            return self.say(files=[self._status(path)])
        if path not in server.dbfs_folders:
            return self.fault(404, "RESOURCE_DOES_NOT_EXIST")
        names = [name for name in [*server.dbfs, *server.dbfs_folders] if name != "/"]
        inside = sorted(name for name in names if (name.rpartition("/")[0] or "/") == path)
        return self.say(files=[self._status(name) for name in inside]) if inside else self.say()

    def dbfs_mkdirs(self, path):
        parts = path.strip("/").split("/")
        self.server.dbfs_folders |= {"/" + "/".join(parts[:n]) for n in range(1, len(parts) + 1)}
        return self.say()

    def dbfs_delete(self, path, recursive=False):
        server = self.server
        if path not in server.dbfs and path not in server.dbfs_folders:
            return self.fault(404, "RESOURCE_DOES_NOT_EXIST")
        if not recursive and any(name.startswith(f"{path}/") for name in [*server.dbfs, *server.dbfs_folders]):
            return self.fault(400, "IO_ERROR")
        server.dbfs.pop(path, None)
        server.dbfs_folders.discard(path)
        return self.say()

    def dbfs_move(self, source_path, destination_path):
        server = self.server
        if destination_path in server.dbfs:
            return self.fault(400, "RESOURCE_ALREADY_EXISTS")
        if source_path not in server.dbfs:
            return self.fault(404, "RESOURCE_DOES_NOT_EXIST")
        self._store(destination_path, server.dbfs.pop(source_path))
        return self.say()

    def _refused(self, path, overwrite):
        if path in self.server.dbfs and not overwrite:
            self.fault(400, "RESOURCE_ALREADY_EXISTS")
            return True
        return False

    def _store(self, path, data):
        self.server.dbfs[path] = data
        self.server.changed[path] = time.time()
        parts = path.strip("/").split("/")[:-1]
        self.server.dbfs_folders |= {"/" + "/".join(parts[:n]) for n in range(1, len(parts) + 1)}

    def _status(self, path):
        is_folder = path in self.server.dbfs_folders
        when = int(self.server.changed.get(path, 0) * 1000)
        size = 0 if is_folder else len(self.server.dbfs[path])
        return {"path": path, "is_dir": is_folder, "file_size": size, "modification_time": when}
