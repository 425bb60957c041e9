//! `gpuheap emulate`: programs on the emulated driver.

use std::process::Command;

use crate::{Ran, library};

/// Runs `gpuheap emulate` with a new folder that contains the emulated libraries.
fn emulate(arguments: &[&str]) -> Ran {
    let folder = library::folder(&[&library::NVML, &library::LIBCUDA]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPUHEAP_") {
            command.env_remove(name);
        }
    }
    crate::ran(command.env("GPUHEAP_STAND_INS", folder.path()).arg("emulate").args(arguments))
}

#[test]
fn program_finds_the_emulated_device() {
    let gpuheap = env!("CARGO_BIN_EXE_gpuheap");
    let ran = emulate(&["--device", "t4", "--", gpuheap, "status", "--json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["devices"][0]["name"], "emulated Tesla T4");
}

#[test]
fn options_are_variables_of_the_program() {
    let print = "echo $GPUHEAP_EMULATED_DEVICE $GPUHEAP_EMULATED_SCHEDULE \
                 $GPUHEAP_EMULATED_CHECKS $GPUHEAP_EMULATED_ACCOUNT";
    let all = ["--device", "16GiB", "--schedule", "lag:5", "--checks", "--account", "/tmp/a"];
    let ran = emulate(&[&all[..], &["--", "sh", "-c", print]].concat());
    assert_eq!(ran.stdout, "16GiB lag:5 1 /tmp/a\n", "{}", ran.stderr);
}

#[test]
fn exit_code_is_passed_on() {
    assert_eq!(emulate(&["--", "sh", "-c", "exit 7"]).code, 7);
    assert_eq!(emulate(&["--", "sh", "-c", "kill -TERM $$"]).code, 143);
}

#[test]
fn wrong_use_runs_nothing() {
    for (arguments, code, text) in [
        (&[][..], 2, "no program was given"),
        (&["sh"], 2, "write -- before the program: gpuheap emulate -- sh"),
        (&["--nosuch", "--", "sh"], 2, "--nosuch"),
        (&["--", "/nosuch/program"], 3, "/nosuch/program cannot be run"),
        (&["--stand-ins", "/nosuch", "--", "sh"], 3, "has no emulated driver"),
    ] {
        let ran = emulate(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(text) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
}
