// Writes zod.json: random tool parameters as zod 4 and zod-to-json-schema (of zod 3) write them.
//
//     npm install zod@4 zod-to-json-schema && node make_zod.mjs > zod.json

import { z as zod4 } from "zod/v4";
import { z as zod3 } from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";

const COUNT = 14; // of each maker
let state = 7;

// A linear congruential generator, so that the file can be made again.
function below(n) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return (state >>> 8) % n;
}

const pick = (list) => list[below(list.length)];

function text(z) {
  return pick([
    () => z.string(),
    () => z.string().max(8),
    () => z.string().min(2).max(6),
    () => z.string().email(),
    () => z.string().uuid(),
    () => z.string().url(),
    () => z.string().datetime(),
    () => z.string().regex(/^[a-f]{2,4}$/),
    () => z.string().startsWith("x/"),
  ])();
}

function number(z) {
  return pick([
    () => z.number(),
    () => z.number().int().min(-5).max(40),
    () => z.number().positive().max(9),
    () => z.number().int().multipleOf(5).min(0).max(100),
    () => z.number().min(0).max(1),
  ])();
}

function choice(z) {
  return pick([
    () => z.enum(["low", "high", "a \"b\""]),
    () => z.literal("fixed"),
    () => z.literal(3),
    () => z.union([z.literal("a"), z.literal(1), z.literal(null)]),
    () => z.boolean(),
    () => z.null(),
  ])();
}

function object(z, depth) {
  const shape = {};
  for (const name of ["a", "b-c", "d e", "value"].slice(0, 1 + below(4))) {
    let member = any(z, depth - 1);
    const form = below(6);
    if (form === 0) member = member.optional();
    if (form === 1) member = member.nullable();
    if (form === 2) member = member.describe("A member.");
    if (form === 3) member = member.nullish();
    shape[name] = member;
  }
  const made = z.object(shape);
  return pick([() => made, () => made.strict(), () => made, () => made.passthrough(), () => made.partial()])();
}

function node(z) {
  const made = z.object({ name: z.string().max(4), next: z.lazy(() => made).nullable() });
  return made;
}

function any(z, depth) {
  const simple = [text, number, choice];
  if (depth <= 0) return pick(simple)(z);
  return pick([
    ...simple.map((make) => () => make(z)),
    () => object(z, depth),
    () => z.array(any(z, depth - 1)).max(3),
    () => z.array(text(z)).min(1).max(2),
    () => z.tuple([number(z), choice(z)]),
    () => z.union([text(z), number(z), object(z, depth - 1)]),
    () => z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("cat"), lives: number(z) }),
      z.object({ kind: z.literal("dog"), owner: any(z, depth - 1).optional() }),
    ]),
    () => z.record(z.string(), number(z)),
    () => z.intersection(z.object({ left: text(z) }), z.object({ right: choice(z) })),
    () => node(z),
  ])();
}

const made = [];
for (let i = 0; i < COUNT; i++) {
  made.push({ maker: "zod", schema: zod4.toJSONSchema(object(zod4, 2)) });
  made.push({ maker: "zod-to-json-schema", schema: zodToJsonSchema(object(zod3, 2)) });
}
console.log("[\n" + made.map((one) => JSON.stringify(one)).join(",\n") + "\n]");
