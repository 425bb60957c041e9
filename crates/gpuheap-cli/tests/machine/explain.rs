//! `gpuheap explain`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::doctor::on;
use crate::schema::{differences, schema_of};
use crate::{gpuheap, recorded};

#[test]
fn topics_use_numbers_of_the_machine() {
    let ran = on("wsl2_windows", &["explain", "wslconfig"]);
    assert!(ran.code == 0 && ran.stdout.contains("\n    memory=23GB\n"), "{}", ran.stdout);
    assert!(on("wsl2_windows", &["explain", "Dedicated"]).stdout.contains("1450 MiB"));
    let ran = gpuheap(&["explain", "nothing"]);
    assert!(ran.code == 2 && ran.stderr.contains("dedicated, wslconfig, rapids"), "{}", ran.stderr);
}

#[test]
fn rules_and_errors_are_explained() {
    let ran = gpuheap(&["explain", "p01"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    insta::assert_snapshot!(ran.stdout);
    assert_eq!(gpuheap(&["explain", "X99"]).code, 2);
    assert_eq!(explain(&[], "Segmentation fault").0, 2);
    let (code, text) =
        explain(&[], "x\nnumba: Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY\n");
    assert!(code == 0 && text.starts_with("Numba: "), "{text}");
}

/// Runs `gpuheap explain` with a text on its standard input.
fn explain(arguments: &[&str], text: &str) -> (i32, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpuheap"))
        .arg("explain")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The write fails if the command refuses its arguments and ends.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn profile_or_machine_decides_on_wsl2() {
    let text = "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: \
                /opt/include/rmm/mr/device/cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation \
                out of memory";
    let of_wsl2 = |arguments: &[&str], text: &str| {
        let (code, shown) = explain(arguments, text);
        assert_eq!(code, 0, "{arguments:?}");
        shown.contains("Windows refused")
    };
    assert!(!of_wsl2(&[], text));
    assert!(of_wsl2(&["--profile", "wsl2-rtx4060"], text));
    let on_a_drive = format!("File \"/mnt/c/ann/load.py\"\n{text}");
    assert!(of_wsl2(&[], &on_a_drive));
    assert!(!of_wsl2(&["--profile", "h200"], &on_a_drive));
    let folder = tempfile::tempdir().unwrap();
    let file = recorded::write("wsl2", folder.path());
    assert!(of_wsl2(&["--machine", file.to_str().unwrap()], text));
    assert_eq!(explain(&["--profile", "k80"], text).0, 2);
    assert_eq!(explain(&["P01", "--profile", "h200"], "").0, 2);
}

#[test]
fn json_of_explanations_follows_schema() {
    let error = "C:\n/mnt/c/x\nRuntimeError: CUDA error: invalid device ordinal";
    let torch = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)";
    for (arguments, text) in [
        (&["--json"][..], error),
        (&["--json"], torch),
        (&["P01", "--json"], ""),
        (&["rapids", "--json"], ""),
    ] {
        let (code, shown) = explain(arguments, text);
        let json = serde_json::from_str(&shown).unwrap();
        assert_eq!((code, differences(&schema_of("explain"), &json, "$")), (0, vec![]), "{json:#}");
    }
    let json: serde_json::Value = serde_json::from_str(&explain(&["--json"], error).1).unwrap();
    assert_eq!(json["guide"], "crates/gpuheap/src/guide/wsl2.md");
    let guide =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(json["guide"].as_str().unwrap());
    assert!(guide.exists());
    assert!(json["alternatives"].as_array().unwrap().len() > 1, "{json}");
}
