"use strict";
// Renders /openapi.json. All text is set as text, never as HTML.

function make(tag, options, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// `code` and **bold** of descriptions, and nothing else.
function prose(text) {
  const parts = String(text || "").split(/(`[^`]+`|\*\*[^*]+\*\*)/);
  return parts.map((part) => {
    if (part.startsWith("`")) return make("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return make("b", {}, part.slice(2, -2));
    return document.createTextNode(part);
  });
}

function paragraphs(text) {
  const box = make("div");
  for (const block of String(text || "").split("\n\n")) {
    if (block.startsWith("- ")) {
      const items = block.split(/\n(?=- )/).map((item) => item.slice(2).replace(/\s+/g, " "));
      box.append(make("ul", {}, ...items.map((item) => make("li", {}, ...prose(item)))));
    } else {
      box.append(make("p", {}, ...prose(block)));
    }
  }
  return box;
}

const refName = (schema) => (schema.$ref ? schema.$ref.split("/").pop() : null);

function typeOf(schema) {
  if (!schema) return ["any"];
  const name = refName(schema);
  if (name) return [make("a", { href: `#schema-${name}` }, name)];
  const variants = schema.anyOf || schema.oneOf;
  if (variants) return variants.flatMap((one, n) => (n ? [" or ", ...typeOf(one)] : typeOf(one)));
  if (schema.enum) return [schema.enum.map((one) => JSON.stringify(one)).join(" | ")];
  if (schema.const !== undefined) return [JSON.stringify(schema.const)];
  if (schema.type === "array") return ["array of ", ...typeOf(schema.items)];
  if (schema.type === "object" && schema.additionalProperties instanceof Object) {
    return ["map of ", ...typeOf(schema.additionalProperties)];
  }
  return [schema.format ? `${schema.type} (${schema.format})` : schema.type || "any"];
}

function row(name, schema, description, required) {
  return make(
    "tr", {},
    make("td", {}, make("code", {}, name), required ? " required" : ""),
    make("td", {}, make("span", { class: "type" }, ...typeOf(schema)), make("br"),
      ...prose(description)),
  );
}

function properties(schema) {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, one]) =>
    row(name, one, one.description, required.has(name)));
  return make("table", {}, make("tbody", {}, ...rows));
}

function content(title, body) {
  const box = make("div", {}, make("h4", {}, title));
  for (const [type, one] of Object.entries(body || {})) {
    box.append(make("p", {}, make("code", {}, type), " ", ...typeOf(one.schema)));
    if (one.example !== undefined) {
      box.append(make("pre", {}, JSON.stringify(one.example, null, 2)));
    }
  }
  return box;
}

function operation(path, method, one) {
  const box = make("section", { id: one.operationId });
  box.append(make("h3", {}, one.summary));
  box.append(make("div", { class: "route" },
    make("span", { class: "method" }, method.toUpperCase()), make("code", {}, path),
    make("span", { class: "scope" }, one["x-scope"] ? `scope: ${one["x-scope"]}` : "no key needed")));
  box.append(paragraphs(one.description));
  if (one.parameters) {
    box.append(make("h4", {}, "Parameters"));
    box.append(make("table", {}, make("tbody", {}, ...one.parameters.map((each) =>
      row(`${each.name} (${each.in})`, each.schema, each.description, each.required)))));
  }
  if (one.requestBody) box.append(content("Request body", one.requestBody.content));
  for (const [status, response] of Object.entries(one.responses)) {
    if (status.endsWith("XX")) continue;
    const title = `Response ${status}: ${response.description}`;
    box.append(content(title, response.content));
  }
  const codes = one["x-problems"] || [];
  if (codes.length) {
    box.append(make("h4", {}, "Problems"));
    box.append(make("p", { class: "codes" },
      ...codes.map((code) => make("a", { href: `/problems/${code}` }, code))));
  }
  return box;
}

function render(api) {
  const index = document.getElementById("index");
  const main = document.getElementById("reference");
  main.replaceChildren(make("h1", {}, `${api.info.title} API`), paragraphs(api.info.description));
  index.append(make("a", { href: "/openapi.json" }, "openapi.json"));
  const all = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, one]) => [path, method, one]));
  for (const tag of api.tags) {
    const own = all.filter(([, , one]) => one.tags.includes(tag.name));
    if (!own.length) continue;
    index.append(make("b", {}, tag.name));
    main.append(make("h2", { id: `tag-${tag.name}` }, tag.name), paragraphs(tag.description));
    for (const [path, method, one] of own) {
      index.append(make("a", { href: `#${one.operationId}` }, one.summary));
      main.append(operation(path, method, one));
    }
  }
  main.append(make("h2", { id: "schemas" }, "Schemas"));
  index.append(make("b", {}, "Schemas"));
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    index.append(make("a", { href: `#schema-${name}` }, name));
    main.append(make("section", { id: `schema-${name}` }, make("h3", {}, name),
      paragraphs(schema.description), schema.enum
        ? make("p", {}, schema.enum.map((one) => JSON.stringify(one)).join(" | "))
        : properties(schema)));
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

fetch("/openapi.json")
  .then((response) => response.json())
  .then(render)
  .catch((error) => {
    document.getElementById("reference").textContent = `The document cannot be loaded: ${error}`;
  });
