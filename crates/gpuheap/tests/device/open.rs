//! Finding, opening and describing devices.

use std::process::Command;
use std::sync::Mutex;

use gpuheap::Device;
use gpuheap::emu::{Options, Profile, Schedule};

use crate::support::{assert_no_findings, device, on_real_gpu};

#[test]
fn list_shows_real_then_emulated() {
    let list = Device::list().unwrap();
    let (emulated, real) = list.split_last().unwrap();
    assert!(emulated.is_emulated);
    insta::assert_snapshot!(emulated, @"emulated: emulated NVIDIA H200, 139.80 GiB, compute capability 9.0, CUDA 13.0");
    assert!(!on_real_gpu() || !real.is_empty());
    for (ordinal, info) in real.iter().enumerate() {
        assert!(!info.is_emulated, "{info}");
        assert_eq!((info.name.clone(), info.ordinal), (format!("cuda:{ordinal}"), ordinal as i32));
        assert_eq!(Device::open(&info.name).unwrap().describe(), *info);
    }
}

#[test]
fn device_description_is_one_line() {
    let device = device(Schedule::Immediate);
    let info = device.describe();
    assert_eq!(info.to_string().lines().count(), 1, "{info}");
    assert!(info.to_string().starts_with(&format!("{}: {}", device.name(), info.product)));
    assert_eq!(info.is_emulated, device.is_emulated());
    assert_eq!(info.is_emulated, !on_real_gpu());
    assert_eq!((info.ordinal, info.total_memory), (device.ordinal(), device.total_memory()));
    assert!(info.driver_version >= 12_000, "{info:?}");
    assert!(info.managed_memory && info.can_map_host && info.host_register, "{info:?}");
    assert_no_findings(&device);
}

#[test]
fn profiles_answer_for_themselves() {
    for name in ["emulated", "emulated:t4", "emulated:16GiB"] {
        assert_eq!(Device::open(name).unwrap().name(), name);
    }
    let t4 = Device::open("emulated:t4").unwrap();
    assert_eq!(t4.to_string(), "emulated:t4 (emulated Tesla T4)");
    let two = Options { devices: vec![Profile::t4(), Profile::t4()], ..Options::default() };
    let second = &Device::emulated_devices(two).unwrap()[1];
    assert_eq!(second.to_string(), "emulated (emulated Tesla T4, device 1)");
    let t4 = t4.describe();
    assert_eq!(t4.compute_capability, (7, 5));
    assert!(t4.concurrent_managed_access);
    let wsl2 = Device::open("emulated:wsl2-rtx4060").unwrap().describe();
    assert!(!wsl2.concurrent_managed_access && wsl2.managed_memory);
    let poor = Profile { pools: false, ..Profile::t4() };
    assert!(!Device::emulated(poor).unwrap().describe().memory_pools);
    let old = Options { driver_version: 12_020, ..Options::default() };
    assert_eq!(Device::emulated_with(old).unwrap().describe().driver_version, 12_020);
}

#[test]
fn reopened_device_is_same() {
    let one = device(Schedule::Immediate);
    let two = if on_real_gpu() { device(Schedule::Immediate) } else { one.clone() };
    let heap = gpuheap::Heap::new(&one).unwrap();
    let stream = two.stream().unwrap();
    drop(two);
    drop(heap.allocate(1000, &stream).unwrap());
    assert_no_findings(&one);
}

#[test]
fn default_device_prefers_real() {
    let device = Device::open_default().unwrap();
    let real = Device::list().unwrap().iter().any(|info| !info.is_emulated);
    let named = std::env::var(NAMES_IT).ok();
    assert_eq!(device.name(), named.as_deref().unwrap_or(if real { "cuda:0" } else { "emulated" }));
    println!("{}", device.heap().unwrap().memory_status().unwrap());
    println!("{}", device.heap().unwrap().memory_status().unwrap().to_json());
    assert_eq!(device.describe().fallback.is_some(), named.is_none() && !real);
}

/// Collects the messages that the library logs.
struct Logger(Mutex<Vec<(log::Level, String)>>);

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

#[test]
fn emulator_fallback_is_logged_and_kept() {
    static LOGGER: Logger = Logger(Mutex::new(Vec::new()));
    log::set_logger(&LOGGER).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let Some(reason) = Device::open_default().unwrap().describe().fallback else { return };
    let no_gpu = "no GPU was found: libcuda was not found as libcuda.so.1, ";
    assert!(reason.starts_with(no_gpu), "{reason}");
    let nodes = "none of /dev/nvidiactl, /dev/nvidia0, /dev/dxg exists";
    assert!(reason.ends_with(nodes), "{reason}");
    let logged = LOGGER.0.lock().unwrap();
    let is_told = |(level, text): &(log::Level, String)| {
        *level == log::Level::Warn && text.contains(&reason) && text.contains("GPUHEAP_DEVICE")
    };
    assert!(logged.iter().any(is_told), "{logged:?}");
    drop(logged);
    assert_eq!(Device::open("emulated").unwrap().describe().fallback, None);
}

/// Two emulated devices may have the same name.
#[test]
#[cfg(feature = "arithmetic")]
fn messages_tell_two_emulated_devices_apart() {
    use gpuheap::{ErrorKind, Location, MemoryKind};

    let [one, two] = ["emulated:1GiB"; 2].map(|name| Device::open(name).unwrap());
    let (heap, other) = (gpuheap::Heap::new(&one).unwrap(), gpuheap::Heap::new(&two).unwrap());
    let (stream, target) = (two.stream().unwrap(), heap.target().unwrap());
    let [a, b] = [&heap, &other].map(|heap| heap.target().unwrap().zeroed::<f32, _>(8).unwrap());
    let unified = target.kind(MemoryKind::Unified).zeroed::<f32, _>(8).unwrap();
    let [timed, later] = [&one, &two].map(|on| on.stream().unwrap().record_timed().unwrap());
    let errors = [
        heap.allocate(1, &stream).unwrap_err(),
        stream.wait(&target.stream().record().unwrap()).unwrap_err(),
        later.elapsed_since(&timed).unwrap_err(),
        (&a + &b).unwrap_err(),
        a.device_ptr(&stream).unwrap_err(),
        unified.prefetch(Location::Other(two.clone())).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
        for device in [&one, &two] {
            let number = device.describe().emulator.unwrap();
            let name = format!("emulated:1GiB (emulated device, emulator {number})");
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
}

const NAMES_IT: &str = "GPUHEAP_DEVICE";

/// The environment is read once, so each value needs its own process. Each process is this test
/// program again. It runs only the test `default_device_prefers_real`.
#[test]
fn the_environment_names_the_default_device() {
    let run = |variable: &str, value: &str| {
        let mut this = Command::new(std::env::current_exe().unwrap());
        let test = "open::default_device_prefers_real";
        let output =
            this.args(["--exact", "--nocapture", test]).env(variable, value).output().unwrap();
        let [out, errors] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let text = format!("{out}{errors}");
        assert!(text.contains("running 1 test"), "{text}");
        (output.status.success(), text)
    };
    let (success, text) = run(NAMES_IT, "emulated:t4");
    assert!(success, "{text}");
    let (success, text) = run(NAMES_IT, "emulated:k80");
    assert!(!success && text.contains("GPUHEAP_DEVICE is set to 'emulated:k80'"), "{text}");
    let (success, text) = run("GPUHEAP_DEVISE", "emulated:t4");
    let warning = "GPUHEAP_DEVISE changes nothing, because there is no such setting; the nearest is \
        GPUHEAP_DEVICE: use that one, or unset GPUHEAP_DEVISE";
    assert!(success && text.contains(&format!("\nWarning: {warning}")), "{text}");
    assert!(text.contains(&format!("\"warnings\":[\"{warning}")), "{text}");
    for name in ["GPUHEAP_TEST_X", "GPUHEAP_SOAK_SECONDS", "GPUHEAP_EMULATED_DEVICE"] {
        let (success, text) = run(name, "1");
        assert!(success && text.contains("\"warnings\":[]"), "{name}: {text}");
    }
}

#[test]
fn unknown_device_name_suggests_names() {
    for (name, part) in [
        ("gpu0", "'gpu0' is not a device; write cuda:0, emulated"),
        ("cuda:first", "'cuda:first' is not a device"),
        ("emulated:", "is neither a profile nor a size"),
        ("emulated:h100", "'h100' is neither a profile nor a size; the profiles are h200,"),
        ("emulated:16", "is a device of 16 bytes, and memory is handed out in steps of 2 MiB"),
        ("", "'' is not a device"),
    ] {
        let error = Device::open(name).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
    let error = Device::open("cuda:1000").unwrap_err().to_string();
    let expected =
        if on_real_gpu() { "there is no device cuda:1000; this machine has" } else { "" };
    assert!(error.contains(expected), "{error}");
}

#[test]
fn emulator_without_devices_is_refused() {
    let none = Options { devices: Vec::new(), ..Options::default() };
    let error = Device::emulated_with(none).unwrap_err();
    insta::assert_snapshot!(error, @"cuInit failed with CUDA_ERROR_NO_DEVICE (100): no CUDA device");
}
