// The official Node SDK. Arguments: base URL, key, model.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const fields = { model, messages, max_tokens: 12, temperature: 0 };
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Oslo"] } },
      required: ["city"],
      additionalProperties: false,
    },
    strict: true,
  },
};

const ids = [];
for await (const each of client.models.list()) ids.push(each.id);
assert(ids.includes(model));

const answer = await client.chat.completions.create(fields);
assert.match(answer.choices[0].message.content, /Paris/);
assert.ok(answer._request_id);

let text = "";
let usage;
const options = { include_usage: true };
for await (const chunk of await client.chat.completions.create({ ...fields, stream: true, stream_options: options })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, answer.choices[0].message.content);
assert.equal(usage.completion_tokens, answer.usage.completion_tokens);
console.log("chat passed");

const forced = { ...fields, max_tokens: 60, tools: [tool], tool_choice: "required", parallel_tool_calls: false };
const runner = client.chat.completions.stream(forced);
const final = await runner.finalChatCompletion();
const call = final.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "get_weather");
assert.ok(["Paris", "Oslo"].includes(JSON.parse(call.function.arguments).city));
console.log("tools passed");

const response_format = {
  type: "json_schema",
  json_schema: { name: "capital", strict: true, schema: tool.function.parameters },
};
const parsed = await client.chat.completions.parse({ ...fields, max_tokens: 60, response_format });
assert.ok(JSON.parse(parsed.choices[0].message.content).city);

const completion = await client.completions.create({ model, prompt: "The capital of France is", max_tokens: 4, temperature: 0 });
assert.match(completion.choices[0].text, /Paris/);

const response = await client.responses.create({ model, input: "What is the capital of France?", max_output_tokens: 16, temperature: 0 });
assert.match(response.output_text, /Paris/);
const kinds = [];
for await (const event of await client.responses.create({ model, input: "hi", max_output_tokens: 16, stream: true })) kinds.push(event.type);
assert.equal(kinds[0], "response.created");
console.log("completions and responses passed");

await assert.rejects(client.chat.completions.create({ ...fields, model: "other" }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ ...fields, temperature: 9 }), (error) => error.param === "temperature");
const stopped = await client.chat.completions.create({ ...fields, max_tokens: 400, stream: true });
for await (const _ of stopped) {
  stopped.controller.abort();
  break;
}
console.log("errors passed");
