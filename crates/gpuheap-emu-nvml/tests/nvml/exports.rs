//! Tests of the symbols that the library exports.

use std::process::Command;

use crate::library;

#[test]
fn exports_are_nvml_and_can_fail() {
    let text = output_of("nm", &["--dynamic", "--defined-only", "--format=posix"]);
    let names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() > 70, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("nvml")), "{names:?}");

    let is_start = |name: &&&str| name.starts_with("nvmlInit") || **name == "nvmlErrorString";
    let failures: Vec<String> = names
        .iter()
        .filter(|name| !is_start(name))
        .map(|name| format!("\"{name}\": \"TIMEOUT\""))
        .collect();
    let description = format!("{{\"failures\": {{{}}}}}", failures.join(", "));
    let variables = [("GPUHEAP_EMULATED_NVML", description.as_str())];
    let folder = library::folder(&[&library::NVML]);
    library::run_ignored_test("exports::counts_in_vain", &folder, &variables);
}

#[test]
#[ignore = "runs in a process of its own"]
fn counts_in_vain() {
    let error = nvml_wrapper::Nvml::init().unwrap().device_count().unwrap_err();
    assert!(matches!(error, nvml_wrapper::error::NvmlError::Timeout), "{error}");
}

#[test]
fn library_has_nvmls_soname() {
    let text = output_of("readelf", &["--dynamic", "--wide"]);
    assert!(text.contains("Library soname: [libnvidia-ml.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

/// Runs a program of binutils, such as `nm`, on the library, and returns the program's output.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let folder = library::folder(&[&library::NVML]);
    let file = folder.path().join("libnvidia-ml.so.1");
    let output = Command::new(program).args(arguments).arg(file).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}
