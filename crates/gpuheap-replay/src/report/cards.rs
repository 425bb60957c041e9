//! Cards as people read them.

use super::Detail;
use super::words::{Amount, hanging, line};
use crate::cards::{self, Card};
use crate::verdict::{Fit, Way};

/// Cards that people know, one or two of each size.
const KNOWN: [&str; 16] = [
    "A100 40GB MIG 1g.5gb",
    "GTX 1060 6GB",
    "RTX 4060 8GB",
    "RTX 3080 10GB",
    "RTX 4070",
    "T4 16GB",
    "RTX 4060 Ti 16GB",
    "L4 24GB",
    "RTX 4090",
    "RTX 5090",
    "A100 40GB",
    "L40S 48GB",
    "A100 80GB",
    "H100 NVL 94GB",
    "H200 141GB",
    "B200 180GB",
];
/// Cards shown that fit as the program is.
const SHOWN: usize = 3;

/// Adds which cards fit, with the settings that make them fit: all, or those that people know around
/// the size that is enough. `first` is the pool of the first remedy.
pub(super) fn add(text: &mut String, fits: &[Fit], first: Option<&str>, detail: Detail) {
    let is_all = detail == Detail::Full;
    let mut known: Vec<&Fit> =
        fits.iter().filter(|fit| is_all || KNOWN.contains(&fit.card.name)).collect();
    known.sort_by_key(|fit| fit.card.usable_bytes);
    // One pool for all, if the program's own is not known.
    let common = match known.iter().find_map(|fit| fit.way.as_ref()) {
        Some(Way::With(first))
            if known.iter().all(|fit| {
                fit.way.as_ref().is_none_or(|way| matches!(way, Way::With(pool) if pool == first))
            }) =>
        {
            Some(first.as_str())
        }
        _ => None,
    };
    let mut parts = Vec::new();
    let shown = if is_all { usize::MAX } else { SHOWN };
    let too_small = known.iter().rev().filter(|fit| fit.way.is_none());
    let largest_too_small = too_small.take(if is_all { usize::MAX } else { 1 });
    parts.extend(largest_too_small.map(|fit| format!("{}: no", named(fit.card))));
    let conditional = known.iter().filter_map(|fit| match &fit.way {
        Some(Way::With(pool)) => {
            let settings = pool.strip_prefix("torch:").unwrap_or(pool);
            if common.is_some() {
                return Some(format!("{}: yes", named(fit.card)));
            }
            Some(format!("{}: yes with {settings}", named(fit.card)))
        }
        _ => None,
    });
    parts.extend(conditional.take(shown));
    let plain = known.iter().filter(|fit| fit.way == Some(Way::AsIs));
    parts.extend(plain.take(shown).map(|fit| format!("{}: yes", named(fit.card))));
    if parts.is_empty() {
        return;
    }
    let with = match common {
        Some(pool) if first == Some(pool) => " with the first of these".to_owned(),
        Some(pool) => format!(" with {pool}"),
        None => String::new(),
    };
    hanging(text, &format!("Cards{with}, as estimated: "), "  ", &parts.join(" · "));
}

/// The name with the memory, if it lacks that.
fn named(card: &Card) -> String {
    let has_memory = card.name.to_ascii_lowercase().contains("gb");
    match has_memory {
        true => card.name.to_owned(),
        false => format!("{} {}GB", card.name, card.vendor_gb),
    }
}

/// Renders the list of all cards, for a terminal of 80 columns.
pub fn list_cards() -> String {
    let mut text = String::new();
    line(
        &mut text,
        format_args!(
            "{:<26} {:<12} {:>10}  {:>10}  {:>8}  {:>4}",
            "card", "class", "memory", "usable", "expand.", "async"
        ),
    );
    for card in cards::all() {
        let mark = if card.usable_is_measured { "" } else { "~" };
        let usable = format!("{mark}{}", Amount(card.usable_bytes));
        let yes = |is: bool| if is { "yes" } else { "no" };
        line(
            &mut text,
            format_args!(
                "{:<26} {:<12} {:>10}  {usable:>10}  {:>8}  {:>4}",
                card.name,
                card.class.to_string(),
                Amount(card.total_bytes).to_string(),
                yes(card.vmm),
                yes(card.pools)
            ),
        );
    }
    text.push_str(
        "memory: as the driver reports it; usable: after CUDA's own, ~ if estimated\n\
         expand.: has expandable_segments; async: has cudaMallocAsync\n",
    );
    text
}
