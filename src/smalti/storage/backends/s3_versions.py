"""Requests for the contents that a versioned bucket of S3 keeps of replaced and removed objects."""

from typing import Any

from smalti.storage.store import OldVersion


class OldVersionRequests:
    """A mixin for s3fs's file system."""

    split_path: Any
    _call_s3: Any

    async def _old_versions(self, path: str) -> list[OldVersion]:
        """Return the noncurrent versions and delete markers below a folder, with whole paths for keys."""
        bucket, folder, _ = self.split_path(path)
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        state = await self._call_s3("get_bucket_versioning", Bucket=bucket)
        found: list[OldVersion] = []
        page_start: dict[str, str] = {}
        while "Status" in state:  # the bucket keeps versions, or did until it was suspended
            page = await self._call_s3("list_object_versions", Bucket=bucket, Prefix=prefix, **page_start)
            found += [
                OldVersion(f"{bucket}/{each['Key']}", each["VersionId"], int(each["Size"]))
                for each in page.get("Versions", ())
                if not each["IsLatest"]
            ]
            found += [
                OldVersion(f"{bucket}/{each['Key']}", each["VersionId"], 0, is_removal=True)
                for each in page.get("DeleteMarkers", ())
            ]
            if not page.get("IsTruncated"):
                break
            page_start = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
        return found

    async def _remove_old_version(self, path: str, version_id: str) -> None:
        bucket, key, _ = self.split_path(path)
        await self._call_s3("delete_object", Bucket=bucket, Key=key, VersionId=version_id)
