"""Uploads of large files in parts to a workspace: signed addresses, and a call that joins the parts."""

import json
import time

PARTS = "/signed/"
FILES = "/api/2.0/fs/files"


class PartCalls:
    """A mixin for handlers whose server has `takes_parts`, `parts` and `files`."""

    def on_parts(self, path, query, body):
        server = self.server
        if not server.takes_parts:
            return self.fault(404, "ENDPOINT_NOT_FOUND")
        if path.startswith(FILES):
            name = path.removeprefix(FILES)
            if query["action"] == ["initiate-upload"]:
                if name.rpartition("/")[0] not in server.folders:
                    return self.fault(404, "NOT_FOUND")
                server.parts[name] = {}
                return self.say(multipart_upload={"session_token": f"session of {name}"})
            numbers = [part["part_number"] for part in json.loads(body)["parts"]]
            parts = server.parts.pop(name)
            server.files[name] = b"".join(parts[number] for number in numbers)
            server.changed[name] = time.time()
            return self.answer(200)
        arguments = json.loads(body)
        if path.endswith("create-upload-part-urls"):
            first, name = arguments["start_part_number"], arguments["path"]
            numbers = range(first, first + arguments["count"])
            urls = [{"url": f"{server.url}{PARTS}{n}{name}", "part_number": n, "headers": []} for n in numbers]
            return self.say(upload_part_urls=urls)
        if path.endswith("create-abort-upload-url"):
            return self.say(abort_upload_url={"url": f"{server.url}{PARTS}0{arguments['path']}", "headers": []})
        return self.fault(404, "ENDPOINT_NOT_FOUND")

    def on_part(self, path, query, body):
        number, _, name = path.removeprefix(PARTS).partition("/")
        if self.command == "DELETE":
            self.server.parts.pop(f"/{name}", None)
            return self.answer(200)
        self.server.parts[f"/{name}"][int(number)] = body
        return self.answer(200, b"", {"ETag": f"etag{number}"})
