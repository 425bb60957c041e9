//! Explains gpuheap's own errors, given as figures (JSON or Python) or as the error's text.

use serde_json::Value;

use super::explanation::{Explanation, explanation};
use super::sizes::{after, before, leading};

/// Program of these errors.
pub(super) const PROGRAM: &str = "gpuheap";

/// Explains the figures of gpuheap's error, written as JSON or as Python prints `error.figures`.
pub(super) fn figures(text: &str) -> Option<Explanation> {
    let object = object(text)?;
    let bytes = |name: &str| object.get(name).and_then(Value::as_u64);
    let is_set = |name: &str| object.get(name).and_then(Value::as_bool) == Some(true);
    bytes("requested")?;
    let kind = object.get("kind").and_then(Value::as_str)?;
    let cause = object.get("cause").and_then(Value::as_str)?;
    let on_host = matches!(kind, "pinned" | "registered");
    let device = object.get("device_name").and_then(Value::as_str).unwrap_or("the device");
    let place = if on_host { "the host's memory" } else { device };
    let words = match cause {
        "larger_than_device" => format!("the request is larger than {place}"),
        "larger_than_limit" => "the request is larger than the limit".to_owned(),
        "limit" => "the limit is reached".to_owned(),
        "total_limit" => "the total limit is reached".to_owned(),
        "device_full" => format!("{place} is full"),
        "fragmentation" => "the cached memory is in pieces that are too small".to_owned(),
        "other_heaps" => format!("other heaps of this process hold the rest of {place}"),
        "foreign" => format!("others hold the rest of {place}"),
        "refused" => "the driver refuses it, though it calls that much free".to_owned(),
        "capture" => "a stream that captures a graph cannot wait for freed memory".to_owned(),
        _ => return None,
    };
    let raised = match (bytes("limit"), bytes("limit_short_by")) {
        (Some(limit), Some(short @ 1..)) if !is_set("limit_is_fixed") && !on_host => {
            limit.checked_add(short)
        }
        _ => None,
    };
    let total = match (bytes("total_limit"), bytes("total_short_by")) {
        (Some(limit), Some(short @ 1..)) => limit.checked_add(short),
        _ => None,
    };
    let fix = match (cause, raised.or(total)) {
        (_, Some(limit)) if raised.is_none() => format!("gpuheap.install(total_limit={limit})"),
        (_, Some(limit)) => format!("heap.set_limits(limit={limit})"),
        ("foreign", _) => "gpuheap status # who holds the device".to_owned(),
        ("refused", _) if on_host => {
            "pin less, and use the buffers again, or use pageable memory".to_owned()
        }
        ("refused", _) => "gpuheap free # who holds the device".to_owned(),
        ("capture", _) => "allocate before the capture begins or after it ended".to_owned(),
        ("other_heaps", _) => "flush the other heaps: heap.flush()".to_owned(),
        ("larger_than_device", _) => "work in smaller pieces, or use a larger device".to_owned(),
        _ => "free arrays that are done with, then heap.flush()".to_owned(),
    };
    let mut found = explanation(PROGRAM, words, fix).confirmed(true);
    let limits = [("GPUHEAP_MEMORY_LIMIT", raised), ("GPUHEAP_TOTAL_MEMORY_LIMIT", total)];
    found.alternatives.extend(exported(limits, ""));
    if is_set("on_wsl2") {
        found = found.with_wsl2_guide();
    }
    // Leaves out figures of zero, because they explain nothing.
    Some(
        found.with_figures(
            &NAMES.map(|(field, name)| (name, bytes(field).filter(|bytes| *bytes > 0))),
        ),
    )
}

/// Returns the command that sets the known limits. `unit` follows each limit's number.
fn exported(limits: [(&str, Option<u64>); 2], unit: &str) -> Option<String> {
    let known = limits.into_iter().filter_map(|(name, limit)| Some((name, limit?)));
    let known: String = known.map(|(name, limit)| format!(" {name}={limit}{unit}")).collect();
    (!known.is_empty()).then(|| format!("export{known} # if the program sets no limit itself"))
}

/// Figures that are shown, each with its name.
const NAMES: [(&str, &str); 11] = [
    ("requested", "requested"),
    ("short_by", "short by"),
    ("live", "live"),
    ("cached", "cached"),
    ("largest_cached_block", "largest cached piece"),
    ("reserved", "reserved"),
    ("limit", "limit"),
    ("total_limit", "total limit"),
    ("device", "device or host"),
    ("device_free", "free of it"),
    ("foreign", "held by others"),
];

/// Returns the JSON object in a text that has the figures of a failed request. If Python printed
/// the object, converts Python's `'`, `None`, `True` and tuples to JSON first.
fn object(text: &str) -> Option<serde_json::Map<String, Value>> {
    let at = text.find("\"requested\"").or_else(|| text.find("'requested'"))?;
    let start = text[..at].rfind('{')?;
    let end = start + text[start..].find('}')?;
    let found = &text[start..=end];
    let json = match serde_json::from_str(found) {
        Ok(value) => value,
        Err(_) => {
            let signs = [("'", "\""), ("None", "null"), ("True", "true"), ("False", "false")];
            let signs = signs.into_iter().chain([("(", "["), (")", "]")]);
            let json = signs.fold(found.to_owned(), |text, (sign, json)| text.replace(sign, json));
            serde_json::from_str(&json).ok()?
        }
    };
    match json {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// Explains gpuheap's own error by its text. The text contains the cause and the remedy. Its sizes
/// are rounded.
pub(super) fn error(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let kinds = ["GPU", "unified", "pinned host", "registered host"];
    let (at, start) = kinds.iter().find_map(|kind| {
        let start = format!("out of {kind} memory: ");
        Some((text.find(&start)?, start))
    })?;
    let text = text[at + start.len()..].lines().next()?;
    let requested = leading(text)?;
    let (head, tail) = text.split_once("; ")?;
    let (_, rest) = head.split_once(" requested, ")?;
    let (short, cause) = match rest.split_once(" short, because ") {
        Some((short, cause)) => (leading(short), cause),
        None => (None, rest.strip_prefix("but ").unwrap_or(rest)),
    };
    let remedy = remedy(tail);
    let limit = after(tail, " reserved of a limit of ");
    let total = after(tail, "; total limit of ");
    // The text rounds the shortage up, so a limit raised by the printed amount is enough.
    let raised = |name: &str, limit: Option<u64>| {
        let short = after(remedy, &format!("raise the {name} by "))
            .or_else(|| after(remedy, &format!("raise the {name} by at least ")));
        Some(limit?.checked_add(short?)?.div_ceil(1 << 20))
    };
    let limits = [
        ("GPUHEAP_MEMORY_LIMIT", raised("limit", limit)),
        ("GPUHEAP_TOTAL_MEMORY_LIMIT", raised("total limit", total)),
    ];
    // The pool's figures come first. The device's name and figures follow.
    let device = tail[remedy.len()..].split("; ").nth(1).and_then(|place| place.split_once(": "));
    let device = device.map(|(name, _)| name).filter(|name| !["device", "host"].contains(name));
    let cause = cause.replace("the device", device.unwrap_or("the device"));
    let found = match exported(limits, "MiB") {
        Some(command) => explanation(PROGRAM, cause, command).with_alternatives(&[remedy]),
        None => explanation(PROGRAM, cause, remedy),
    };
    let found = match on_wsl2 || tail.contains("WSL2") {
        true => found.with_wsl2_guide(),
        false => found,
    };
    Some(found.confirmed(true).rounded(true).with_figures(&[
        ("requested", Some(requested)),
        ("short by", short),
        ("live", before(tail, " live")),
        ("cached", before(tail, " cached (")),
        ("largest cached piece", after(tail, "largest ")),
        ("reserved", before(tail, " reserved")),
        ("limit", limit),
        ("total limit", total),
        ("held by others", before(tail, " foreign")),
    ]))
}

/// Returns the remedy in `tail`, the last part of an error's text. The remedy ends before the
/// bracket with the figures, such as ` (split pool: ...`.
fn remedy(tail: &str) -> &str {
    let pools = ["none", "simple", "binned", "split", "stitched", "driver"];
    let figures = pools.iter().filter_map(|pool| tail.find(&format!(" ({pool} pool: ")));
    tail[..figures.min().unwrap_or(tail.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_python_figures_are_exact() {
        let json = "{\"requested\": 6442450945, \"kind\": \"device\", \"cause\": \"limit\", \
                    \"limit\": 4294967297, \"limit_short_by\": 2147483651, \"tried\": []}";
        let python = "{'requested': 6442450945, 'kind': 'device', 'cause': 'limit', 'limit': \
                      4294967297, 'limit_short_by': 2147483651, 'device_free': None, 'on_wsl2': \
                      False, 'tried': [('Ready', 0)]}";
        for text in [json, python] {
            let found = figures(text).unwrap();
            assert_eq!(found.fix, "heap.set_limits(limit=6442450948)");
            assert_eq!(found.evidence[0], ("requested", 6_442_450_945));
            assert!(!found.is_rounded);
        }
        assert_eq!(figures("{'requested': 1}"), None);
        assert_eq!(figures("'requested' }{"), None);
    }
}
