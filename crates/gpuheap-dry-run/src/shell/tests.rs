//! Tests of shells. A shell is a shared object without code that has the name of a vendor's
//! library. The tests load shells with the machine's loader.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::elf::bytes;
use super::{CUDART, LIBRARIES, build};

/// Runs a program with files preloaded.
fn preloaded(program: &Path, files: &[PathBuf]) -> Output {
    let list: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    Command::new(program).env("LD_PRELOAD", list.join(":")).output().unwrap()
}

/// Compiles C code. Passes `arguments` to the compiler.
fn compile(folder: &Path, output: &str, code: &str, arguments: &[&str]) -> PathBuf {
    let source = folder.join(format!("{output}.c"));
    fs::write(&source, code).unwrap();
    let mut command = Command::new("cc");
    command.current_dir(folder).arg("-o").arg(output).arg(&source).args(arguments);
    assert!(command.status().unwrap().success());
    folder.join(output)
}

#[test]
fn loader_takes_every_shell() {
    let folder = tempfile::tempdir().unwrap();
    let stand_in = compile(folder.path(), "libown.so", "", &["-shared", "-fPIC"]);
    let names = CUDART.iter().chain(&LIBRARIES);
    let files: Vec<PathBuf> = names
        .map(|name| {
            let path = folder.path().join(name);
            fs::write(&path, build(name, &stand_in)).unwrap();
            path
        })
        .collect();
    let output = preloaded(Path::new("/bin/true"), &files);
    assert!(output.status.success());
    // If the loader could not preload a file, standard error would name the file.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    fs::write(&files[0], &build(CUDART[0], &stand_in)[..100]).unwrap();
    let output = preloaded(Path::new("/bin/true"), &files);
    assert!(String::from_utf8_lossy(&output.stderr).contains(CUDART[0]));
}

/// With a shell, the loader uses the emulated library and not the vendor's. Like PyTorch's
/// libraries, the test's program has the vendor's folder in its `DT_RPATH`. It also needs a symbol
/// of a certain version.
#[test]
fn shell_keeps_the_vendors_library_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let soname = "libvendor.so.7";
    fs::write(folder.join("versions"), "VENDOR_7 { global: *; };").unwrap();
    let version = ["-Wl,--version-script=versions", &format!("-Wl,-soname,{soname}")];
    let shared = ["-shared", "-fPIC"];
    let vendor = "int answer(void) { return 1; }";
    compile(folder, soname, vendor, &[&shared[..], &version].concat());
    let main = "int answer(void); int main(void) { return answer(); }";
    let path = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display());
    let program = compile(folder, "program", main, &[soname, &path]);
    let own = compile(folder, "libown.so", "int answer(void) { return 2; }", &shared);
    let shell = folder.join("shell");
    fs::write(&shell, bytes(soname, "VENDOR_7", own.to_str().unwrap())).unwrap();

    assert_eq!(preloaded(&program, &[]).status.code(), Some(1));
    let output = preloaded(&program, &[own.clone(), shell.clone()]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(2));
    // The loader does not open the vendor's file, so the program also runs without the file.
    fs::remove_file(folder.join(soname)).unwrap();
    assert_eq!(preloaded(&program, &[own.clone(), shell]).status.code(), Some(2));
    assert_eq!(preloaded(&program, std::slice::from_ref(&own)).status.code(), Some(127));
    // If a shell has another library name or symbol version than the vendor's library, the shell
    // does not replace that library.
    for (name, version) in [("libvendor.so.8", "VENDOR_7"), (soname, soname)] {
        let other = folder.join("other");
        fs::write(&other, bytes(name, version, own.to_str().unwrap())).unwrap();
        assert_ne!(preloaded(&program, &[own.clone(), other]).status.code(), Some(2));
    }
}

#[test]
fn shells_handle_finds_stand_ins_functions() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let own = "int answer(void) { return 2; }";
    let own = compile(folder, "libown.so", own, &["-shared", "-fPIC"]);
    let shell = folder.join("shell");
    fs::write(&shell, bytes("libvendor.so.7", "VENDOR_7", own.to_str().unwrap())).unwrap();
    let main = "#include <dlfcn.h>
        int main(void) {
            void *library = dlopen(\"libvendor.so.7\", RTLD_NOW);
            int (*answer)(void) = library ? (int (*)(void))dlsym(library, \"answer\") : 0;
            return answer ? answer() : 9;
        }";
    let program = compile(folder, "program", main, &["-ldl"]);
    assert_eq!(preloaded(&program, &[own, shell]).status.code(), Some(2));
}
