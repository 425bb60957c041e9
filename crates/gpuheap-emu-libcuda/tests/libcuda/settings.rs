//! Tests of the environment variables, and of the errors for invalid values.

use gpuheap_driver::{BlockEvent, BlockNote, CUcontext, CUresult, CUstream, Driver, OpenError};

use crate::{library, open_driver};

#[test]
fn unknown_value_lists_valid_ones() {
    let folder = library::folder(&[&library::LIBCUDA]);
    for (variable, value, names) in [
        ("GPUHEAP_EMULATED_DEVICE", "h2000", "h200"),
        ("GPUHEAP_EMULATED_DEVICE", "12XB", "16GiB"),
        ("GPUHEAP_EMULATED_DEVICE", "h200,", "h200"),
        ("GPUHEAP_EMULATED_DEVICE", "0", "16GiB"),
        ("GPUHEAP_EMULATED_SCHEDULE", "sometimes", "seeded:N"),
        ("GPUHEAP_EMULATED_SCHEDULE", "seeded:x", "seeded:N"),
        ("GPUHEAP_EMULATED_CHECKS", "yes", "0 or 1"),
        ("GPUHEAP_EMULATED_DRIVER", "11.8", "12.0"),
        ("GPUHEAP_EMULATED_DRIVER", "new", "13.0"),
        ("GPUHEAP_EMULATED_LOG", "loud", "0 or 1"),
        ("GPUHEAP_EMULATED_ACCOUNT", "/proc/version", "may be written"),
    ] {
        let stderr = library::stderr_of("settings::cannot_open", &folder, &[(variable, value)]);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(&format!("{variable}={value:?}")), "{stderr}");
        assert!(stderr.contains(names), "{stderr}");
    }
}

#[test]
fn account_refuses_too_many_devices() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let account = folder.path().join("account").to_str().unwrap().to_owned();
    for (count, test) in [(16, "settings::opens"), (17, "settings::cannot_open")] {
        let devices = vec!["1GiB"; count].join(",");
        let variables = [
            ("GPUHEAP_EMULATED_DEVICE", devices.as_str()),
            ("GPUHEAP_EMULATED_ACCOUNT", account.as_str()),
        ];
        let stderr = library::stderr_of(test, &folder, &variables);
        assert_eq!(stderr.contains("at most 16 devices"), count == 17, "{stderr}");
    }
}

#[test]
fn environment_chooses_device() {
    let folder = library::folder(&[&library::LIBCUDA]);
    for (variables, expected) in [
        (vec![], "1 of emulated NVIDIA H200"),
        (vec![("GPUHEAP_EMULATED_DEVICE", "t4")], "1 of emulated Tesla T4"),
        (vec![("GPUHEAP_EMULATED_DEVICE", "16GiB")], "17179869184"),
        (vec![("GPUHEAP_EMULATED_DEVICE", "16GiB,rtx4090,t4")], "3 of"),
        (
            vec![("GPUHEAP_EMULATED_DEVICE", "16GiB,rtx4090,t4"), ("CUDA_VISIBLE_DEVICES", "2,0")],
            "2 of emulated Tesla T4",
        ),
        (vec![("GPUHEAP_EMULATED_DRIVER", "12.4")], "CUDA 12040"),
        (vec![("GPUHEAP_EMULATED_DRIVER", "13.0")], "CUDA 13000"),
    ] {
        let stdout = library::run_ignored_test("settings::opens", &folder, &variables);
        assert!(stdout.contains(expected), "{variables:?}: {stdout}");
    }
}

#[test]
fn empty_list_hides_all_devices() {
    let folder = library::folder(&[&library::LIBCUDA]);
    for list in ["", "-1", "7"] {
        library::run_ignored_test(
            "settings::finds_no_device",
            &folder,
            &[("CUDA_VISIBLE_DEVICES", list)],
        );
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn finds_no_device() {
    match open_driver("libcuda.so.1".as_ref()) {
        Err(OpenError::Initialise { code, .. }) => assert_eq!(code, CUresult::ERROR_NO_DEVICE),
        other => panic!("{other:?}"),
    }
}

#[test]
fn failed_lookups_are_logged() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let stderr =
        library::stderr_of("settings::asks_in_vain", &folder, &[("GPUHEAP_EMULATED_LOG", "1")]);
    assert_eq!(stderr, "gpuheap: libcuda: no cuTeleport of CUDA 12.3 or before\n");
    library::run_ignored_test("settings::asks_in_vain", &folder, &[]);
}

#[test]
fn misuse_is_reported_when_asked() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let checks = [("GPUHEAP_EMULATED_CHECKS", "1")];
    let stderr = library::stderr_of("settings::frees_twice", &folder, &checks);
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    for line in stderr.lines() {
        assert!(line.starts_with("gpuheap: libcuda: cuMemFree_v2 frees "), "{line}");
    }
    library::run_ignored_test("settings::frees_twice", &folder, &[]);
}

#[test]
fn hidden_findings_are_counted_at_exit() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let checks = [("GPUHEAP_EMULATED_CHECKS", "1")];
    let stderr = library::stderr_of("settings::frees_nothing_often", &folder, &checks);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 102, "{stderr}");
    assert!(lines[100].contains("100 findings are shown"), "{}", lines[100]);
    assert_eq!(lines[101], "gpuheap: libcuda: 1234 findings, the first 100 of them shown above");
}

/// Starts a process that allocates most of the device's memory and then starts a second process.
#[test]
fn processes_share_account_memory() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let file = folder.path().join("account");
    let variables = [
        ("GPUHEAP_EMULATED_DEVICE", "64MiB"),
        ("GPUHEAP_EMULATED_ACCOUNT", file.to_str().unwrap()),
    ];
    let stdout = library::run_ignored_test("settings::takes_48_mib_twice", &folder, &variables);
    assert!(stdout.contains("the second is refused"), "{stdout}");
    // The first process has ended, and its memory is free again.
    let stdout = library::run_ignored_test("settings::takes_48_mib", &folder, &variables);
    assert!(stdout.contains("code 0"), "{stdout}");
}

#[test]
#[ignore = "runs in a process of its own"]
fn takes_48_mib() {
    let driver = open_driver("libcuda.so.1".as_ref()).unwrap();
    let (mut context, mut address) = (CUcontext::NULL, 0);
    // SAFETY: the pointers are valid for writes.
    unsafe {
        assert!(driver.cuDevicePrimaryCtxRetain(&mut context, 0).is_success());
        assert!(driver.cuCtxSetCurrent(context).is_success());
        println!("code {}", driver.cuMemAlloc_v2(&mut address, 48 << 20).0);
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn takes_48_mib_twice() {
    takes_48_mib();
    let this = std::env::current_exe().unwrap();
    let arguments = ["settings::takes_48_mib", "--exact", "--ignored", "--nocapture"];
    let second = std::process::Command::new(this).args(arguments).output().unwrap();
    let stdout = library::quiet_success(second);
    assert!(stdout.contains("code 2"), "{stdout}");
    println!("the second is refused");
}

/// The test `leaves_its_block`, run as a program, reports blocks to the emulated driver as a heap
/// does. The checks must find its uses outside of the blocks.
#[test]
fn block_misuse_is_reported_with_checks() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let checks = [("GPUHEAP_EMULATED_CHECKS", "1")];
    let stderr = library::stderr_of("settings::leaves_its_block", &folder, &checks);
    let lines: Vec<&str> = stderr.lines().collect();
    let [beyond, freed] = lines[..] else { panic!("{stderr}") };
    assert!(beyond.contains("cuMemsetD8_v2 uses 100 bytes at "), "{beyond}");
    assert!(beyond.contains(", 50 bytes into a block of 100 bytes at "), "{beyond}");
    assert!(freed.contains(" and freed on the default stream "), "{freed}");
    library::run_ignored_test("settings::leaves_its_block", &folder, &[]);
}

#[test]
#[ignore = "runs in a process of its own"]
fn leaves_its_block() {
    let driver = open_driver("libcuda.so.1".as_ref()).unwrap();
    let (mut context, mut address) = (CUcontext::NULL, 0);
    // SAFETY: the pointers are valid for writes, and the memory includes the ranges of all fills.
    unsafe {
        assert!(driver.cuDevicePrimaryCtxRetain(&mut context, 0).is_success());
        assert!(driver.cuCtxSetCurrent(context).is_success());
        assert!(driver.cuMemAlloc_v2(&mut address, 4096).is_success());
    }
    let stream = CUstream::NULL;
    let block = BlockNote { context, address, bytes: 100, room: 512, stream };
    let fill = |at: u64| {
        // SAFETY: the memory includes the ranges of all fills.
        let filled = unsafe { driver.cuMemsetD8_v2(address + at, 1, 100) };
        assert!(filled.is_success());
    };
    let note = |event: BlockEvent, block: &BlockNote| {
        driver.block_checks().iter().for_each(|checks| checks.note(event, block));
    };
    note(BlockEvent::Allocated, &block);
    fill(0);
    fill(50);
    note(BlockEvent::Resized, &BlockNote { bytes: 512, ..block });
    fill(50);
    note(BlockEvent::FreedZeroed, &block);
    fill(0);
    // SAFETY: the allocation is freed once, at its address.
    assert!(unsafe { driver.cuMemFree_v2(address) }.is_success());
}

#[test]
#[ignore = "runs in a process of its own"]
fn frees_twice() {
    let driver = open_driver("libcuda.so.1".as_ref()).unwrap();
    let mut context = CUcontext::NULL;
    // SAFETY: the pointers are valid for writes. The second free is deliberate: the checks must
    // find it.
    unsafe {
        assert!(driver.cuDevicePrimaryCtxRetain(&mut context, 0).is_success());
        assert!(driver.cuCtxSetCurrent(context).is_success());
        for bytes in [100, 10_000_000] {
            let mut pointer = 0;
            assert!(driver.cuMemAlloc_v2(&mut pointer, bytes).is_success());
            assert!(driver.cuMemFree_v2(pointer).is_success());
            assert_eq!(driver.cuMemFree_v2(pointer), CUresult::ERROR_INVALID_VALUE);
        }
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn frees_nothing_often() {
    let driver = open_driver("libcuda.so.1".as_ref()).unwrap();
    let mut context = CUcontext::NULL;
    // SAFETY: the pointers are valid for writes. The wrong frees are deliberate: the checks must
    // find them.
    unsafe {
        assert!(driver.cuDevicePrimaryCtxRetain(&mut context, 0).is_success());
        assert!(driver.cuCtxSetCurrent(context).is_success());
        for _ in 0..1234 {
            assert_eq!(driver.cuMemFree_v2(0x1234), CUresult::ERROR_INVALID_VALUE);
        }
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn cannot_open() {
    match open_driver("libcuda.so.1".as_ref()) {
        Err(OpenError::Initialise { function, code, .. }) => {
            assert_eq!((function, code), ("cuInit", CUresult::ERROR_INVALID_VALUE));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn opens() {
    let driver = open_driver("libcuda.so.1".as_ref()).unwrap();
    let (mut count, mut bytes, mut name) = (0, 0, [0_u8; 64]);
    // SAFETY: the pointers are valid for writes, and 64 is the length of the array.
    unsafe {
        assert!(driver.cuDeviceGetCount(&mut count).is_success());
        assert!(driver.cuDeviceGetName(name.as_mut_ptr().cast(), 64, 0).is_success());
        assert!(driver.cuDeviceTotalMem_v2(&mut bytes, 0).is_success());
    }
    let name = std::ffi::CStr::from_bytes_until_nul(&name).unwrap().to_str().unwrap();
    assert!(name.contains("emulated"), "{name}");
    println!("{count} of {name}, {bytes} bytes, CUDA {}", driver.version());
}

#[test]
#[ignore = "runs in a process of its own"]
fn asks_in_vain() {
    let driver = open_driver("libcuda.so.1".as_ref()).unwrap();
    let mut address = std::ptr::null_mut();
    let mut status = 0;
    // SAFETY: the arguments are a C string and pointers that are valid for writes.
    let code = unsafe {
        driver.cuGetProcAddress_v2(c"cuTeleport".as_ptr(), &mut address, 12_030, 0, &mut status)
    };
    assert!(code.is_success() && address.is_null());
}
