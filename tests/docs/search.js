// Searches a built site as its pages do: by the theme's own worker, which a browser would run.
// node search.js WORKER INDEX < QUERIES: a list of [location, score] for each query, the best first.
const fs = require("fs")
const vm = require("vm")

const [worker, index] = process.argv.slice(2)
let receive, answer
globalThis.self = globalThis
globalThis.addEventListener = (_, listener) => (receive = listener)
globalThis.postMessage = (message) => answer(message)
vm.runInThisContext(fs.readFileSync(worker, "utf8"))

const [SETUP, QUERY] = [0, 2]
const ask = (type, data) =>
  new Promise((resolve) => {
    answer = resolve
    receive({ data: { type, data } })
  })

async function main() {
  await ask(SETUP, { ...JSON.parse(fs.readFileSync(index, "utf8")), options: {} })
  const results = []
  for (const query of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const { data } = await ask(QUERY, query)
    results.push(data.items.flat().map(({ location, score }) => [location, score]))
  }
  console.log(JSON.stringify(results))
}

main()
