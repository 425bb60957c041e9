//! Compiles C and C++ programs against the header and both libraries. Needs a C and a C++ compiler:
//! `CC` and `CXX`, else `cc` and `c++`. If `clang` and `clang++` are installed, uses them too.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

#[path = "../../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;

/// Language of a source file.
#[derive(Clone, Copy)]
enum Language {
    C,
    Cplusplus,
}

impl Language {
    fn of(source: &str) -> Language {
        if source.ends_with(".c") { Language::C } else { Language::Cplusplus }
    }

    /// Returns the compilers to test with. The first is named by `CC` or `CXX`, or else is the
    /// system's default compiler. The second is clang, if it is installed.
    fn compilers(self) -> Vec<OsString> {
        let (variable, usual, other) = match self {
            Language::C => ("CC", "cc", "clang"),
            Language::Cplusplus => ("CXX", "c++", "clang++"),
        };
        let mut compilers = vec![std::env::var_os(variable).unwrap_or_else(|| usual.into())];
        if Command::new(other).arg("--version").output().is_ok() {
            compilers.push(other.into());
        }
        compilers
    }
}

/// Output of the example on any device.
const PRINTED: &str = "\
20971520 bytes at a multiple of 512: yes
allocated: 20972520 bytes live in 2 allocations, 20972520 at most
freed: 1000 bytes live in 1 allocations, 20972520 at most
a second free is refused
gpuheap_allocate: out of GPU memory: 100 MiB requested, 38 MiB short, because the request is \
larger than the limit; raise the limit by 38 MiB";

#[test]
fn example_runs_with_shared_library() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_example(&folder, &["-L", &text(built("")), "-lgpuheap_capi"]);
    // The program finds the library by its soname, not by the path that it was linked with.
    let alone = tempfile::tempdir().unwrap();
    std::fs::copy(built("libgpuheap_capi.so"), alone.path().join("libgpuheap_capi.so")).unwrap();
    assert_prints(run(Command::new(program).env("LD_LIBRARY_PATH", alone.path())));
}

#[test]
fn example_runs_with_static_library() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = [&text(built("libgpuheap_capi.a")), "-lpthread", "-ldl", "-lm"];
    let program = compile_example(&folder, &libraries);
    assert_prints(run(&mut Command::new(program)));
}

#[test]
fn variable_records_program() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_example(&folder, &["-g", "-L", &text(built("")), "-lgpuheap_capi"]);
    let path = folder.path().join("run.gph");
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", built("")).env("GPUHEAP_RECORD", &path);
    run(&mut command);
    let trace = gpuheap_trace::read(&path, &Default::default()).unwrap().swap_remove(0);
    let summary = trace.summary();
    assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (20_972_520, 0));
    assert_eq!(summary.failures, 1);
    let site = trace.site(trace.events()[0].stack);
    assert!(site.starts_with("allocate.c:") && site.ends_with(" in main"), "{site}");
}

#[test]
fn threads_free_each_others_memory() {
    each_prints(
        "threads.c",
        &["-std=c99", "-pthread"],
        "16 threads, 32000 allocations, 0 bytes live\n",
    );
}

#[test]
fn attack_from_c_gets_status_text() {
    each_prints("attack.c", &["-std=c99", "-pthread"], "attacked: 0 wrong\n");
}

/// The program prints the lines that allocated, so it is compiled with debug information (`-g`).
#[test]
fn allocating_places_fill_structures() {
    let expected = "none: 0\nplaces: 3\n\
        50000 bytes in 1, kind 0, at sites.cpp, 1, by a thread\n\
        1000 bytes in 1, kind 0, at sites.cpp, 1, by a thread\n\
        named: 1\nchanges: 3\n\
        50000 bytes in 1, kind 0, at sites.cpp, 1, by none\n\
        -1000 bytes in -1, kind 0, at sites.cpp, 1, by none\n\
        later: 0, 2, 50000 10, 0 0\ntoo small: 2\nnowhere: 2, 2\n";
    each_prints("sites.cpp", &["-std=c++17", "-g", "-pthread"], expected);
    sanitized_prints("sites.cpp", expected);
}

#[test]
fn attack_from_cplusplus_throws_text() {
    let expected = "allocate: 6, a text\nflush: 6, a text\ndevice: 6, a text\nfree: 6, a text\n\
        close scope: 6, a text\ncontainer: 6, a text, as bad_alloc\nmoved heap: 2, a text\n\
        statistics: 2, a text\nmoved to itself: 10\nonce: 0, twice: 3\nuntracked: 2, a text\n\
        limits: 2, a text\nscope of another thread: 2, a text\nfreed there: 0\n\
        in a child: 6, a text\nfree in a child: 6, a text\nchild: 0\n\
        no device: 5, a text\nno name: 2, a text\n";
    each_prints("attack.cpp", &["-std=c++17", "-pthread"], expected);
    sanitized_prints("attack.cpp", expected);
}

/// The thread sanitizer checks only the C program, because the library is compiled without the
/// sanitizer.
#[test]
fn threads_of_c_race_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let ignored = folder.path().join("ignored");
    std::fs::write(&ignored, "called_from_lib:libgpuheap_capi.so\n").unwrap();
    let program =
        compile_chosen(&folder, "threads.c", &["-std=c99", "-g", "-fsanitize=thread", "-pthread"]);
    let options = format!("suppressions={}", ignored.display());
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", built("")).env("TSAN_OPTIONS", options);
    assert_eq!(run(&mut command), "16 threads, 32000 allocations, 0 bytes live\n");
}

#[test]
fn example_prints_refusals_on_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_example(&folder, &["-L", &text(built("")), "-lgpuheap_capi"]);
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", built("")).env("GPUHEAP_DEVICE", "gpu0");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("gpuheap_open: GPUHEAP_DEVICE is set to 'gpu0'"), "{said}");
}

#[test]
fn c_header_compiles_as_cplusplus() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.cpp");
    // The C++ program sets options by member and calls a function of the C header.
    let program = "#include <gpuheap.h>\n#include <gpuheap.h>\n\
        int main() { gpuheap_options options{}; options.size = sizeof options;\n\
        gpuheap_heap *heap = nullptr;\n\
        if (gpuheap_open(\"emulated:1GiB\", &options, &heap) != GPUHEAP_STATUS_OK) return 1;\n\
        return gpuheap_close(heap) == GPUHEAP_STATUS_OK ? 0 : 2; }\n";
    std::fs::write(&source, program).unwrap();
    for compiler in Language::Cplusplus.compilers() {
        let arguments = ["-std=c++11", "-pedantic", "-L", &text(built("")), "-lgpuheap_capi"];
        let program = compile(&folder, compiler, &source, &arguments);
        run(Command::new(program).env("LD_LIBRARY_PATH", built("")));
    }
}

/// Each installed compiler compiles both headers in every standard that the headers support. Older
/// compilers call C++23 c++2b.
#[test]
fn headers_compile_in_every_standard() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().join("nothing");
    std::fs::write(&nothing, "").unwrap();
    let c: &[_] = &["c99", "c11", "c17"];
    let cplusplus: &[_] = &["c++11", "c++14", "c++17", "c++20", "c++2b"];
    for (header, language, name, standards) in [
        ("gpuheap.h", Language::C, "c", c),
        ("gpuheap.h", Language::Cplusplus, "c++", cplusplus),
        ("gpuheap.hpp", Language::Cplusplus, "c++", &cplusplus[2..]),
    ] {
        for compiler in language.compilers() {
            for standard in standards {
                let mut command = Command::new(&compiler);
                command.args(["-c", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x"]);
                command.arg(name).arg(format!("-std={standard}"));
                command.arg("-include").arg(include_folder().join(header)).arg(&nothing);
                command.arg("-o").arg(folder.path().join("nothing.o"));
                run(&mut command);
            }
        }
    }
}

#[test]
fn cplusplus_header_names_its_standard() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.cpp");
    std::fs::write(&source, "#include <gpuheap.hpp>\n").unwrap();
    for compiler in Language::Cplusplus.compilers() {
        let mut command = Command::new(compiler);
        command.args(["-std=c++14", "-c", "-I"]).arg(include_folder()).arg(&source);
        let output = command.arg("-o").arg(folder.path().join("program.o")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("gpuheap.hpp needs C++17: compile with -std=c++17"), "{said}");
    }
}

/// Output of owners.cpp, with and without exceptions.
const OWNERS: &str = "\
1000 elements, 4000 bytes, live 4000
moved from: 1, live 4040
used on: 1
after the end: 0
no elements: 1
too large: 0, 1
overflow: 9223372036854775807 elements of 8 bytes are more than addresses can count
fits: 2 0
grown: 1
leaks: 1
status: 1
on another thread: 0
scope: 1 of 2 freed
closed twice: 0
flushed: live 0, wait 1
thrown: 1
";

#[test]
fn owners_free_their_memory() {
    for flags in [&["-std=c++17"][..], &["-std=c++2b"], &["-std=c++17", "-fno-exceptions"]] {
        each_prints("owners.cpp", &[flags, &["-pthread"]].concat(), OWNERS);
    }
}

/// Calls each method of owners that were freed, moved from or closed, and compares the whole text
/// of each error.
#[test]
fn ended_owners_refuse_every_call() {
    let expected = include_str!("ended.txt");
    each_prints("ended.cpp", &["-std=c++17"], expected);
    sanitized_prints("ended.cpp", expected);
}

#[test]
fn callback_exceptions_end_the_process() {
    let source = "throws.cpp";
    for compiler in Language::of(source).compilers() {
        let folder = tempfile::tempdir().unwrap();
        let program = compile_test(&folder, compiler, source, &["-std=c++17", "-pthread"]);
        for (argument, setter) in
            [("shortage", "gpuheap_on_shortage"), ("thread end", "gpuheap_on_thread_end")]
        {
            let mut command = Command::new(&program);
            let output = command.arg(argument).env("LD_LIBRARY_PATH", built("")).output().unwrap();
            assert_eq!(output.status.signal(), Some(6), "SIGABRT: {output:?}");
            assert!(output.stdout.is_empty(), "{output:?}");
            let said = String::from_utf8(output.stderr).unwrap();
            let text = format!("an exception left the function that was passed to {setter}");
            assert!(said.contains(&text), "{said}");
        }
    }
}

/// Runs owners.cpp under the address and leak sanitizers. The owners are C++ objects that own a
/// heap or its memory.
#[test]
fn owners_pass_sanitizers() {
    sanitized_prints("owners.cpp", OWNERS);
}

/// Standard containers take their memory from a heap. Sanitizers check the same program.
#[test]
fn containers_live_in_heap_memory() {
    let expected = "9999 100 long enough to be outside of the string itself\n\
        pinned: 1, device: 0\n\
        equal: 1 0\n\
        an alignment of 1024 bytes is above 512, which all memory of a heap has\n\
        out of memory: 1\n\
        refused: 1\n\
        both: 2\n\
        after the reset: 1\n";
    each_prints("containers.cpp", &["-std=c++20"], expected);
    sanitized_prints("containers.cpp", expected);
}

/// Makes the calls that Thrust and CCCL make, without their headers. `tests/cuda/run` uses the
/// headers.
#[test]
fn cuda_resources_allocate_and_free() {
    for flags in [&["-std=c++17"], &["-std=c++2b"]] {
        each_prints(
            "resources.cpp",
            flags,
            "allocated: 4001\nfreed: 0\nequal: 1 1\nthrown: 0\nthrown: 0\nresource: 400\nfreed: 0\n\
             equal: 1 1\nan alignment of 4096 bytes is above 512, which all memory of a heap has\n",
        );
    }
}

/// Runs programs on a machine with two emulated devices. The library finds the emulated driver the
/// way it finds the real driver.
#[test]
fn each_device_has_a_heap() {
    let driver = library::folder(&[&library::LIBCUDA]);
    let machine = [
        ("GPUHEAP_EMULATED_DEVICE", "256MiB,1GiB"),
        ("GPUHEAP_EMULATED_CHECKS", "1"),
        ("GPUHEAP_EMULATED_SCHEDULE", "on-demand"),
    ];
    for (source, standard, expected) in [
        (
            "devices.c",
            "-std=c99",
            "3 devices\n\
             cuda:0: number 0, 256 MiB, emulated 0, 1 1 1\n\
             cuda:1: number 1, 1024 MiB, emulated 0, 1 1 1\n\
             emulated: number 0, 143155 MiB, emulated 1, 1 1 1\n\
             a heap on cuda:0: live 1000\n\
             a heap on cuda:1: live 2000\n\
             by the other's heap: 3\n\
             by its own: 0\n\
             freed: 1000 0\n\
             100 MiB: 0\n\
             100 MiB: 1\n\
             after the flush: 1 0\n\
             later: 0, then 0\n\
             too small: 2\n\
             none: 2, gpuheap_get_device: there is no device 3; gpuheap_count_devices says 3, and they \
             are counted from 0\n\
             nowhere: 2 2 2\n\
             no heap: 2\n\
             a third: 5\n",
        ),
        (
            "devices.cpp",
            "-std=c++17",
            "cuda:0: 256 MiB, live 1000\n\
             cuda:1: 1024 MiB, live 1000\n\
             a third: 5\n\
             registered: 1000 elements, 4000 bytes, 1\n\
             again: 0\n\
             moved from: 1, 4000 bytes\n\
             moved back: 1, 4000 bytes\n\
             after the end: 0 bytes, 999\n\
             unregistered: 0 bytes\n\
             refused: 2 2 2\n",
        ),
    ] {
        for compiler in Language::of(source).compilers() {
            let folder = tempfile::tempdir().unwrap();
            let program = compile_test(&folder, compiler, source, &[standard]);
            let mut command = library::command(&program, &driver, &machine);
            let folders = std::env::join_paths([driver.path(), &built("")]).unwrap();
            assert_eq!(run(command.env("LD_LIBRARY_PATH", folders)), expected, "{source}");
        }
    }
}

/// The example runs only with PyTorch and a GPU, so here it is only compiled.
#[test]
fn pytorch_allocator_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/torch_allocator.cpp");
    let libraries = ["-L", &text(built("")), "-lgpuheap_capi", "-Wl,--no-undefined"];
    let shared = ["-std=c++17", "-pedantic", "-shared", "-fPIC", "-pthread"];
    for compiler in Language::Cplusplus.compilers() {
        compile(&folder, compiler, &source, &[&shared[..], &libraries].concat());
    }
}

/// The shared library exports only the functions of the header.
#[test]
fn shared_library_exports_the_header() {
    let listed =
        run(Command::new("nm").args(["-D", "--defined-only"]).arg(built("libgpuheap_capi.so")));
    let exported: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let header = std::fs::read_to_string(include_folder().join("gpuheap.h")).unwrap();
    let declares = |name: &&str| header.contains(&format!("{name}("));
    assert!(exported.iter().all(declares), "{exported:?}");
    // Comment lines begin with another character.
    let code = header.lines().filter(|line| line.starts_with(|first: char| first.is_alphabetic()));
    let code = code.filter(|line| !line.starts_with("typedef"));
    let functions = code.filter(|line| line.contains("gpuheap_") && line.contains('(')).count();
    assert_eq!(exported.len(), functions, "{exported:?}");
}

fn compile_example(folder: &TempDir, libraries: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/allocate.c");
    let chosen = Language::C.compilers().swap_remove(0);
    compile(folder, chosen, &source, &[&["-std=c99", "-pedantic"], libraries].concat())
}

/// Compiles a program of this folder with each installed compiler, and asserts its output.
fn each_prints(source: &str, flags: &[&str], expected: &str) {
    for compiler in Language::of(source).compilers() {
        let folder = tempfile::tempdir().unwrap();
        let program = compile_test(&folder, compiler.clone(), source, flags);
        let printed = run(Command::new(program).env("LD_LIBRARY_PATH", built("")));
        assert_eq!(printed, expected, "{source} {flags:?}, by {compiler:?}");
    }
}

/// Runs a C++ program of this folder under the sanitizers for addresses, leaks and undefined
/// behaviour. Asserts the program's output, and that the sanitizers find nothing.
fn sanitized_prints(source: &str, expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];
    let flags = [&["-std=c++17", "-g", "-pthread"][..], &sanitizers].concat();
    let program = compile_chosen(&folder, source, &flags);
    let printed = run(Command::new(program).env("LD_LIBRARY_PATH", built("")));
    assert_eq!(printed, expected, "{source}");
}

/// Compiles a source file of `tests/c` as [`compile_test`] does, with the compiler that the
/// environment names, or else `cc` or `c++`.
fn compile_chosen(folder: &TempDir, source: &str, flags: &[&str]) -> PathBuf {
    compile_test(folder, Language::of(source).compilers().swap_remove(0), source, flags)
}

/// Compiles a source file of `tests/c` into `folder`, and links it with the shared library.
fn compile_test(folder: &TempDir, compiler: OsString, source: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let library = ["-pedantic", "-L", &text(built("")), "-lgpuheap_capi"];
    compile(folder, compiler, &source, &[flags, &library].concat())
}

fn compile(folder: &TempDir, compiler: OsString, source: &Path, arguments: &[&str]) -> PathBuf {
    let program = folder.path().join("program");
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror"]).arg(source).arg("-I").arg(include_folder());
    run(command.args(arguments).arg("-o").arg(&program));
    program
}

fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Returns the path of a library of this package. Cargo builds it with the tests.
fn built(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join(name)
}

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().unwrap()
}

fn assert_prints(printed: String) {
    assert!(printed.starts_with(PRINTED), "{printed}");
    assert!(printed.contains("\nsomething went back: yes\n"), "{printed}");
    let end = "SplitPool usage: 0 (0 allocated, 0 cached)\n\
               Memory limit: hard = 64 MiB\n";
    assert!(printed.ends_with(end), "{printed}");
}

/// Returns the output of a command, which must succeed and print nothing on stderr.
fn run(command: &mut Command) -> String {
    if std::env::var_os("GPUHEAP_DEVICE").is_none() {
        command.env("GPUHEAP_DEVICE", "emulated:1GiB");
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stderr.is_empty(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}
