//! Compares JSON with a schema of `docs/`. Only the keywords of these schemas are supported.

use std::path::Path;

use serde_json::Value;

/// Returns the schema `docs/NAME.schema.json`.
pub(crate) fn schema_of(name: &str) -> Value {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = std::fs::read_to_string(docs.join(format!("{name}.schema.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the places at which a value differs from a schema. An unknown field is a difference too:
/// readers may ignore it, but the schema must describe it.
pub(crate) fn differences(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(alternatives) = schema["anyOf"].as_array() {
        let each = alternatives.iter().map(|schema| differences(schema, value, at));
        return each.min_by_key(Vec::len).unwrap();
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |wanted: &Value| wanted == kind || (wanted == "number" && kind == "integer");
    let is_outside = |bound: &str, outside: fn(f64, f64) -> bool| {
        let both = value.as_f64().zip(schema[bound].as_f64());
        both.is_some_and(|(value, bound)| outside(value, bound))
    };
    let mut found = Vec::new();
    for (keyword, given) in schema.as_object().unwrap() {
        let follows = match keyword.as_str() {
            "$schema"
            | "title"
            | "description"
            | "properties"
            | "items"
            | "additionalProperties" => true,
            "type" => given.as_array().map_or(is_kind(given), |kinds| kinds.iter().any(is_kind)),
            "enum" => given.as_array().unwrap().contains(value),
            "const" => given == value,
            "minimum" => !is_outside("minimum", |value, bound| value < bound),
            "maximum" => !is_outside("maximum", |value, bound| value > bound),
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
                value.is_null() || given.as_array().unwrap().iter().all(has)
            }
            other => panic!("the schema has {other}, which this test does not know"),
        };
        if !follows {
            found.push(format!("{at}: {value} is not {keyword} {given}"));
        }
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name).or(schema.get("additionalProperties")) {
            Some(schema) => found.extend(differences(schema, field, &format!("{at}.{name}"))),
            None => found.push(format!("{at}.{name} is not in the schema")),
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(differences(&schema["items"], item, &format!("{at}[{index}]")));
    }
    found
}
