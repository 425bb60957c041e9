//! Text of cards.

use crate::cards::{self, Class};
use crate::text::{Amount, add_line, hanging};
use crate::verdict::{Fit, Way};

/// Well-known cards. Each size has one or two cards.
const KNOWN: [&str; 16] = [
    "GTX 1650 4GB",
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
/// Maximum number of fitting cards shown, in addition to one card for data centres.
const SHOWN_OWNED: usize = 2;

/// Adds the cards that fit, with the settings that they need, and the largest card that does not
/// fit. If `is_all`, adds all cards. `first` is the pool of the first remedy.
pub(super) fn add(text: &mut String, fits: &[Fit], first: Option<&str>, is_all: bool) {
    let mut known: Vec<&Fit> =
        fits.iter().filter(|fit| is_all || KNOWN.contains(&fit.card.name)).collect();
    known.sort_by_key(|fit| fit.card.usable_bytes);
    // If all cards that fit need the same pool, the lines of the cards do not name the pool.
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
    let too_small = known.iter().rev().filter(|fit| fit.way.is_none());
    let largest_too_small = too_small.take(if is_all { usize::MAX } else { 1 });
    parts.extend(largest_too_small.map(|fit| format!("{}: no", fit.card.name)));
    let of_fit = |fit: &&Fit| match (&fit.way, common) {
        (Some(Way::With(pool)), None) => {
            let settings = pool.strip_prefix("torch:").unwrap_or(pool);
            format!("{}: yes with {settings}", fit.card.name)
        }
        _ => format!("{}: yes", fit.card.name),
    };
    let is_conditional = |fit: &&&Fit| matches!(fit.way, Some(Way::With(_)));
    let in_centre = |fit: &&&Fit| fit.card.class == Class::DataCentre;
    let fitting = || known.iter().filter(|fit| fit.way.is_some());
    if is_all {
        parts.extend(fitting().filter(is_conditional).map(of_fit));
        parts.extend(fitting().filter(|fit| !is_conditional(fit)).map(of_fit));
    } else {
        // Shows two cards that are not for data centres. At least one of the two fits with the
        // program's own pool, if such a card exists.
        let owned = || fitting().filter(|fit| !in_centre(fit));
        let plain = owned().filter(|fit| !is_conditional(fit));
        let conditional = owned().filter(is_conditional);
        let few = if plain.clone().next().is_some() { 1 } else { SHOWN_OWNED };
        let shown: Vec<&&Fit> = conditional.take(few).chain(plain).take(SHOWN_OWNED).collect();
        let smallest_shown = shown.first().map_or(0, |fit| fit.card.usable_bytes);
        let centre = fitting().filter(in_centre);
        let centre = centre.filter(|fit| fit.card.usable_bytes >= smallest_shown).take(1);
        parts.extend(shown.iter().copied().chain(centre).map(of_fit));
    }
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

/// Renders the list of all cards, for a terminal of 80 columns.
pub fn list_cards() -> String {
    let mut text = String::new();
    add_line!(
        &mut text,
        "{:<26} {:<12} {:>10}  {:>10}  {:>8}  {:>4}",
        "card",
        "class",
        "memory",
        "usable",
        "expand.",
        "async"
    );
    for card in cards::all() {
        let mark = if card.usable_is_measured { "" } else { "~" };
        let usable = format!("{mark}{}", Amount(card.usable_bytes));
        let yes = |is: bool| if is { "yes" } else { "no" };
        add_line!(
            &mut text,
            "{:<26} {:<12} {:>10}  {usable:>10}  {:>8}  {:>4}",
            card.name,
            card.class.to_string(),
            Amount(card.total_bytes).to_string(),
            yes(card.vmm),
            yes(card.pools)
        );
    }
    text.push_str(
        "memory: as the driver reports it; usable: after CUDA's own, ~ if estimated\n\
         expand.: has expandable_segments; async: has cudaMallocAsync\n",
    );
    text
}
