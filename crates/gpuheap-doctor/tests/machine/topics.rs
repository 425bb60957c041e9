//! Tests the topics of `gpuheap explain`. Their texts contain the memory sizes of a machine.

use std::path::{Path, PathBuf};

use gpuheap_doctor::{Machine, RULES, Recording, TOPICS, Topic};
use gpuheap_driver::wsl2::{USABLE_PERCENT, usable};

use crate::support::named;

fn explained(topic: &str, recording: Recording) -> String {
    let mut machine = Machine::read(recording);
    machine.read_windows();
    let text = Topic::explain(topic, &machine, 80).unwrap().text;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

#[test]
fn topics_have_the_numbers_of_wsl2() {
    let mut text = String::new();
    for topic in TOPICS {
        text.push_str(&format!("== {topic}\n{}", explained(topic, named("wsl2_windows"))));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn topics_state_unknown_figures() {
    let estimated = explained("wslconfig", named("wsl2"));
    assert!(estimated.contains("31.05 GiB of memory (estimated"), "{estimated}");
    assert!(explained("dedicated", named("wsl2")).contains("gave no figures"));
    assert!(explained("dedicated", named("h200_idle")).contains("not WSL2"));
    let none = explained("rapids", Recording::default());
    assert!(none.contains("No GPU answers here"), "{none}");
}

#[test]
fn suggested_pool_fits_free_memory() {
    for name in ["wsl2", "h200_idle", "several_users"] {
        let machine = Machine::read(named(name));
        let text = explained("rapids", named(name));
        let number = |key: &str| {
            let rest = text.split(key).nth(1).unwrap();
            rest.split([',', ')']).next().unwrap().parse::<u64>().unwrap()
        };
        let (first, most) = (number("initial_pool_size="), number("maximum_pool_size="));
        let free = machine.devices()[0].free;
        assert!(first <= most && most < free && first % 256 == 0, "{text}");
        let share = if machine.host.is_wsl { usable(free) } else { free / 100 * 90 };
        assert!((share - (512 << 20)..=share).contains(&most), "{text}");
    }
}

#[test]
fn wsl2_is_detected_without_any_fact() {
    let machine = Machine::read(named("wsl2"));
    assert!(machine.host.wsl_facts.len() >= 4, "{:?}", machine.host.wsl_facts);
    // A kernel that the user built lacks `/dev/dxg` and WSL2's name. The driver in /usr/lib/wsl and
    // WSL2's environment variables still show WSL2.
    let custom = named("wsl2")
        .with("/proc/sys/kernel/osrelease", "6.6.87-mine\n")
        .without("/dev/dxg", gpuheap_doctor::Why::Missing);
    let host = Machine::read(custom.clone()).host;
    assert!(host.is_wsl && host.has_no_device, "{host:?}");
    let driver_alone = custom.with("environment", "");
    assert!(!Machine::read(driver_alone).host.is_wsl);
    assert!(Machine::read(named("h200_idle")).host.wsl_facts.is_empty());
}

/// Returns the pages and headers that users read.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages =
        vec![root.join("README.md"), root.join("crates/gpuheap-capi/include/gpuheap.h")];
    for folder in ["docs", "crates/gpuheap/src/guide"] {
        let files = std::fs::read_dir(root.join(folder)).unwrap();
        pages.extend(files.map(|file| file.unwrap().path()));
    }
    pages.retain(|page| page.extension().is_some_and(|kind| kind == "md" || kind == "h"));
    pages
}

/// Returns the percentages that a text gives as usable shares of the free memory under WSL2.
fn shares(text: &str) -> Vec<u64> {
    let text = text.split_whitespace().filter(|word| *word != "//").collect::<Vec<_>>().join(" ");
    let of_free = [" % of what is free", " % of the free memory", " % of what looks free"];
    let percent = |at: usize| {
        let near = &text[..at];
        let near = &near[near.char_indices().rev().nth(200).map_or(0, |(at, _)| at)..];
        let number = near.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        (near.contains("WSL2") || near.contains("Windows") || near.contains("when it is"))
            .then_some(number)
    };
    of_free
        .iter()
        .flat_map(|words| text.match_indices(words).filter_map(|(at, _)| percent(at)))
        .collect()
}

#[test]
fn wsl2_share_is_the_same_everywhere() {
    let topics = TOPICS.map(|topic| explained(topic, named("wsl2_windows")));
    let rules = RULES.iter().map(|rule| rule.explanation());
    let files = pages().into_iter().map(|page| std::fs::read_to_string(page).unwrap());
    let texts: Vec<String> = topics.into_iter().chain(rules).chain(files).collect();
    let found: Vec<u64> = texts.iter().flat_map(|text| shares(text)).collect();
    // A topic, rule W06, the C header and several pages state which share of the memory is usable
    // under WSL2. `shares` must find all of them.
    assert!(found.len() >= 6, "{found:?}");
    assert!(found.iter().all(|percent| *percent == USABLE_PERCENT), "{found:?}");
    let all = texts.join(" ");
    assert!(!all.contains("15 to 20 %") && !all.contains("nothing fails"), "an older share");
}
