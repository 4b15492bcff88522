"""Write, stream and read by `format("mds")` on the session that the first argument names; run by test_clusters.

python -m tests.spark.mds.everywhere <master>|connect <set> <folder> <options> <conf>
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.catalog import history
from smalti.spark import register
from smalti.storage import open_store
from tests.spark.writing.end_to_end import session_of


def write_source(folder):
    """Write three files of ten rows, with numbers from 100 on."""
    folder.mkdir()
    for number in range(3):
        ids = range(100 + number * 10, 110 + number * 10)
        pq.write_table(pa.table({"id": ids, "text": [str(i) for i in ids]}), folder / f"{number}.parquet")


def main(master, place, folder, options, conf):
    """Print what is read after a write of 30 rows, a stream of 30 more in three micro-batches, and an overwrite."""
    given = json.loads(options)
    session = session_of(master, json.loads(conf))
    if master == "connect":
        register(session)

    def tell(what):
        rows = session.read.format("mds").options(**given).load(place).select("id", "text").collect()
        print(what, *sorted(row.id for row in rows), "as written:", all(row.text == str(row.id) for row in rows))

    rows = session.range(0, 30, 1, 3).selectExpr("id", "string(id) as text")
    rows.write.format("mds").mode("append").options(**given).save(place)
    tell("written")
    source = Path(folder, "source")
    write_source(source)
    stream = session.readStream.schema("id long, text string").option("maxFilesPerTrigger", 1).parquet(str(source))
    query = stream.writeStream.format("mds").options(**given, checkpointLocation=f"{folder}/checkpoint")
    query.trigger(availableNow=True).start(place).awaitTermination()
    tell("streamed")
    rows.where("id < 3").write.format("mds").mode("overwrite").options(**given).save(place)
    tell("replaced")
    bad = rows.selectExpr("if(id = 29, null, id) as id", "text")
    try:
        bad.write.format("mds").mode("append").options(**given).save(place)
    except Exception as error:  # of Spark Connect or Py4J, with the text of the task's
        print("refused", "Spark partition 2: column 'id'" in str(error))
    store = open_store(place, {name.removeprefix("storage."): value for name, value in given.items()})
    print(*(info.operation for info in history(store)))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
