//! Runs the programs in `examples/`, each as a process.
//!
//! On the emulator, the output is compared with a snapshot. On the device of `GPUHEAP_TEST_DEVICE`,
//! the exit code and the important lines are checked.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Every example, with lines that it prints on any device.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "allocate_and_free",
        &[
            "BinnedPool usage: 8 KiB (0 allocated, 8 KiB cached)",
            "another one: 0 calls of the driver",
            "reclaimed 8192 bytes",
            "Effective GPU memory usage:",
        ],
    ),
    (
        "free_synchronize_reset",
        &["freed: the heap keeps it", "the device was reset since this was made"],
    ),
    (
        "group_sums",
        &["30 batches", "1038015 float keys", "the same on the host: true\n\n1048576 rows"],
    ),
    (
        "leaking_threads",
        &[
            "'forgets' ended and left 300000 bytes",
            "the scope freed 3 arrays, 500000 bytes",
            "500000 bytes are outstanding",
        ],
    ),
    (
        "managed_memory",
        &[
            "the same by copies: true",
            "unified memory at the end: 0",
            "unified memory: 64 MiB stay until the process ends",
        ],
    ),
    (
        "process_end",
        &[
            "child: released it in",
            "child: holds 512 MiB of unified memory",
            "it ended in good order",
            "it ended by a signal",
            "all of it came back: true",
        ],
    ),
    (
        "several_streams",
        &[
            "the copy holds [1.5, 1.5, 1.5]",
            "took 0 bytes from the driver",
            "both streams are done: true",
            "live at the end: 0 bytes",
        ],
    ),
    ("too_large", &["32 MiB short", "the largest: 999", "the same on the host: true"]),
    (
        "tour",
        &[
            "the same as on the host: true",
            "reclaim gives it to the driver\n8192 bytes",
            "error: the array was freed at",
            "4000 bytes that nobody can free",
        ],
    ),
    ("zero_before_free", &["and finds: \"the key is 0451, tell no\"", "and finds: 24 zeros"]),
];

/// Lines that an example prints only on a real device.
const ON_A_GPU: &[(&str, &str)] = &[(
    "free_synchronize_reset",
    "an array of 256 MiB                                    +256 MiB",
)];

#[test]
fn examples_print_their_snapshots() {
    for &(name, lines) in EXAMPLES {
        let printed = match std::env::var("GPUHEAP_TEST_DEVICE") {
            Ok(device) => {
                let printed = run(name, Some(&device));
                let more = ON_A_GPU.iter().filter(|(of, _)| *of == name);
                for (_, line) in more {
                    assert!(printed.contains(line), "{name}: '{line}' is not in\n{printed}");
                }
                assert!(!printed.contains("came back: false"), "{name}:\n{printed}");
                printed
            }
            Err(_) => {
                let printed = run(name, None);
                insta::assert_snapshot!(name, steady(&printed));
                printed
            }
        };
        for line in lines {
            assert!(printed.contains(line), "{name}: '{line}' is not in\n{printed}");
        }
    }
}

#[test]
fn managed_memory_reports_wsl2_limits() {
    let printed = run("managed_memory", Some("emulated:wsl2-rtx4060"));
    assert!(printed.contains("not prefetched:\n  unified memory cannot be"), "{printed}");
    assert!(printed.contains("the same by copies: true"), "{printed}");
}

#[test]
fn no_example_is_left_out() {
    let Ok(folder) = std::fs::read_dir(sources()) else {
        let elsewhere = std::env::var_os("GPUHEAP_TEST_DEVICE").is_some();
        assert!(elsewhere, "{} cannot be read", sources().display());
        return; // a machine with a GPU that has the binaries alone
    };
    let mut found: Vec<String> = folder
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
        .collect();
    found.sort();
    let tested: Vec<_> = EXAMPLES.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, tested);
}

/// Returns the rows of a section's table. Each row is a list of its cells.
fn rows<'p>(page: &'p str, heading: &str) -> Vec<Vec<&'p str>> {
    let (_, section) = page.split_once(heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Checks that each question of the README has a page, and that CI runs the page's program.
#[test]
fn readme_questions_have_answers_and_programs() {
    let root = sources().join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let Some(page) = read("README.md") else {
        assert!(std::env::var_os("GPUHEAP_TEST_DEVICE").is_some(), "the README cannot be read");
        return; // a machine with a GPU that has the binaries alone
    };
    let rows = rows(&page, "## Five questions\n");
    assert_eq!(rows.len(), 5);
    for row in &rows {
        let [question, answer, command] = row[..] else { panic!("{row:?}") };
        let (question, link) = question.trim_matches(['[', ')']).split_once("](").unwrap();
        let page = read(link).unwrap_or_else(|| panic!("{question}: there is no {link}"));
        assert!(!answer.is_empty() && page.starts_with(&format!("# {question}\n")), "{link}");
        assert!(page.contains(command.trim_matches('`')), "{link} does not have {command}");
        // Finds the CI file that runs the program, and the program's name in that file.
        let words: Vec<&str> = command.trim_matches('`').split(' ').collect();
        let (suite, name) = match words[..] {
            ["examples/cpp/run", name] => ("tests/cpp/run", format!("examples/cpp/run\" {name}")),
            ["python3", path] => {
                let name = path.strip_prefix("examples/python/").unwrap();
                ("crates/gpuheap-python/tests/test_examples.py", name.to_owned())
            }
            ["cargo", "run", "--bin", name] => ("examples/tests/run.rs", format!("\"{name}\"")),
            _ => panic!("{question}: {command}"),
        };
        assert!(read(suite).unwrap().contains(&name), "{question}: {suite} does not run {name}");
    }
    let languages = ["examples/cpp", "examples/cpp", "python3", "python3", "cargo"];
    assert!(rows.iter().zip(languages).all(|(row, word)| row[2].contains(word)), "{rows:?}");
}

/// Runs an example, on its default device or on `device`, and returns its output.
fn run(name: &str, device: Option<&str>) -> String {
    let program = built(name);
    let mut command = Command::new(&program);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("GPUHEAP_") {
            command.env_remove(variable);
        }
    }
    command.envs(device.map(|device| ("GPUHEAP_DEVICE", device)));
    let output = command.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{errors}\n{printed}", output.status);
    assert!(errors.is_empty(), "{name} wrote to stderr:\n{errors}");
    printed
}

/// Returns the path of an example. It is where cargo built it, or next to this test if both were
/// copied to another machine.
fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let folders = [Path::new(env!("CARGO_BIN_EXE_tour")), &here].map(|file| file.parent().unwrap());
    let programs =
        folders.map(|folder| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)));
    programs.iter().find(|program| program.exists()).unwrap_or(&programs[0]).clone()
}

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns `text` without addresses, times and thread numbers, because they differ from run to run.
fn steady(text: &str) -> String {
    let mut steady = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        steady.push_str(before);
        let end = from.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(from.len());
        let (number, after) = from.split_at(end);
        rest = after;
        if number == "0" && after.starts_with('x') {
            rest = after[1..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
            steady.push_str("0x[address]");
        } else if let Some(after) = after_time(after) {
            rest = after;
            steady.push_str("[time]");
        } else if before.ends_with('(') && after.starts_with([',', ')']) {
            steady.push_str("[number]");
        } else {
            steady.push_str(number);
        }
    }
    steady + rest
}

/// Returns the text after a unit of time, if `text` begins with one.
fn after_time(text: &str) -> Option<&str> {
    let text = text.strip_prefix(' ').unwrap_or(text);
    let after = ["ns", "µs", "ms", "s"].iter().find_map(|unit| text.strip_prefix(unit))?;
    (!after.starts_with(char::is_alphanumeric)).then_some(after)
}

#[test]
fn steady_omits_varying_values() {
    let text = "0x2000_1: 16 ms old, 1.5s, (23615, ended) (12) 8 KiB (0 bytes) 32 segments [1]";
    let without = "0x[address]_1: [time] old, [time], ([number], ended) ([number]) 8 KiB \
                   (0 bytes) 32 segments [1]";
    assert_eq!(steady(text), without);
}
