//! Explanations with the numbers of a machine.

use gpuheap_doctor::{Machine, Recording, TOPICS, explain_topic};

use crate::support::named;

fn explained(topic: &str, recording: Recording) -> String {
    let mut machine = Machine::read(recording);
    machine.ask_windows();
    let text = explain_topic(topic, &machine, 80).unwrap();
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
fn topics_say_what_they_do_not_know() {
    let estimated = explained("wslconfig", named("wsl2"));
    assert!(estimated.contains("31.05 GiB of memory (estimated"), "{estimated}");
    assert!(explained("dedicated", named("wsl2")).contains("could not be asked"));
    assert!(explained("dedicated", named("h200_idle")).contains("not WSL2"));
    let none = explained("rapids", Recording::default());
    assert!(none.contains("No GPU answers here"), "{none}");
}

#[test]
fn pool_fits_into_what_is_free() {
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
        assert_eq!(most > free / 4 * 3, !machine.host.is_wsl, "{text}");
    }
}

#[test]
fn detection_needs_no_single_fact() {
    let machine = Machine::read(named("wsl2"));
    assert!(machine.host.wsl_facts.len() >= 4, "{:?}", machine.host.wsl_facts);
    // A custom kernel, without the device, but with the driver and the variables.
    let custom = named("wsl2")
        .with("/proc/sys/kernel/osrelease", "6.6.87-mine\n")
        .without("/dev/dxg", gpuheap_doctor::Why::Missing);
    let host = Machine::read(custom.clone()).host;
    assert!(host.is_wsl && host.has_no_device, "{host:?}");
    let driver_alone = custom.with("environment", "");
    assert!(!Machine::read(driver_alone).host.is_wsl);
    assert!(Machine::read(named("h200_idle")).host.wsl_facts.is_empty());
}
