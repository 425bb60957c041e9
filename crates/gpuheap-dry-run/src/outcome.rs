//! Derives the result of a run from the reports of the run's processes.

use crate::card::Device;
use crate::devices;
use crate::program::Run;
use crate::reports::Process;
use crate::verdict::{
    CardResult, DeviceResult, Ended, Outcome, ProcessResult, Reason, Refusal, Then,
};

/// Library that contains PyTorch's allocator.
const PYTORCH: &str = "libc10_cuda.so";
/// Libraries with an allocator between the program and the driver. If the driver refuses a request,
/// the allocator tries other sizes or other memory. If all fail, the program gets an error.
/// `gpuheap` stands for a heap that is linked into a program in Rust or Python.
const ALLOCATORS: [&str; 4] =
    ["gpuheap", "libgpuheap_capi.so", "libgpuheap_malloc.so", "librmm.so"];

/// Returns the result of `run` on its card.
pub(crate) fn from_run(run: &Run) -> CardResult {
    let outcome = match outcome(run.ended, &run.processes) {
        outcome if !outcome.is_fit() || !is_oversubscribed(run) => outcome,
        _ if run.device.is_of_windows() => Outcome::DoesNotFit,
        outcome if run.allows_oversubscription => outcome,
        _ => Outcome::Oversubscribed,
    };
    let processes: Vec<_> =
        run.processes.iter().filter_map(|one| process(one, run.ended)).collect();
    CardResult {
        ended: Some(run.ended),
        devices: devices::judge(run, &processes, outcome),
        processes,
        seconds: run.seconds,
        errors: match outcome {
            Outcome::NoVerdict(_) => run.errors.clone(),
            _ => String::new(),
        },
        ..without_run(&run.device, outcome)
    }
}

/// Returns the highest peak of memory in use over all devices.
pub(crate) fn most_in_use(run: &Run) -> Option<u64> {
    let drivers = run.processes.iter().filter_map(|process| process.driver.as_ref());
    drivers.flat_map(|driver| &driver.devices).map(|device| device.peak_in_use).max()
}

/// Returns a result for a card on which the program was not run.
pub(crate) fn without_run(device: &Device, outcome: Outcome) -> CardResult {
    CardResult {
        card: device.card.name.to_owned(),
        total: device.total_bytes,
        usable: device.usable_bytes(),
        is_estimated: device.is_estimated(),
        outcome,
        is_replayed: false,
        ended: None,
        devices: Vec::new(),
        processes: Vec::new(),
        seconds: 0.0,
        errors: String::new(),
    }
}

/// Returns the outcome of a run.
fn outcome(ended: Ended, processes: &[Process]) -> Outcome {
    let torch = || processes.iter().filter_map(|process| process.torch.as_ref());
    let steps = torch().map(|torch| torch.steps).max().unwrap_or(0);
    if ran_out(ended, processes) {
        let mut last = torch().filter_map(|torch| torch.failures.last());
        return match last.any(|failure| failure.is_absurd) {
            true => Outcome::NoVerdict(Reason::AbsurdRequest),
            false => Outcome::DoesNotFit,
        };
    }
    if torch().any(|torch| torch.hang.is_some()) {
        return Outcome::NoVerdict(Reason::Hang);
    }
    match ended {
        Ended::TimeLimit if steps == 0 => return Outcome::NoVerdict(Reason::NoStep),
        Ended::Interrupted => return Outcome::NoVerdict(Reason::Interrupted),
        _ if processes.iter().any(is_static) => return Outcome::NoVerdict(Reason::StaticRuntime),
        Ended::Exit(0) | Ended::TimeLimit => {}
        Ended::Exit(_) | Ended::Signal(_) => return Outcome::NoVerdict(Reason::Failed),
    }
    if processes.iter().all(|process| device_results(process).is_empty()) {
        return Outcome::NoVerdict(Reason::NoGpuUsed);
    }
    let is_hookless = processes.iter().any(has_hookless_pytorch);
    match is_hookless || torch().any(|torch| !torch.sizes.is_empty()) {
        true => Outcome::FitsAsFarAsKnown,
        false => Outcome::Fits,
    }
}

/// Returns whether device memory and managed memory together exceeded a device's memory.
fn is_oversubscribed(run: &Run) -> bool {
    let drivers = run.processes.iter().filter_map(|process| process.driver.as_ref());
    let mut devices = drivers.flat_map(|driver| &driver.devices);
    devices.any(|one| one.peak_managed > 0 && one.peak_demand > one.total)
}

/// Returns whether memory ran out. Some programs catch the failure, and try smaller sizes until one
/// fits. Such a program counts as fitting only if it completed another optimiser step.
fn ran_out(ended: Ended, processes: &[Process]) -> bool {
    let mut torch = processes.iter().filter_map(|process| process.torch.as_ref());
    let gave_up = torch.any(|torch| torch.failed > 0 && !torch.went_on);
    let is_decisive = |process: &Process| {
        let mut requests = process.driver.iter().flat_map(|driver| &driver.requests);
        requests.any(|request| is_decisive(request, process, ended))
    };
    gave_up || processes.iter().any(is_decisive)
}

/// Returns whether a refused request means that memory ran out. A refusal does not count if a later
/// request or step shows that the program continued. Refusals to PyTorch's allocator count only if
/// the Python hook does not watch that allocator, because the hook reports its failures. Refusals
/// to other allocators count only if the program failed.
fn is_decisive(request: &Refusal, process: &Process, ended: Ended) -> bool {
    let failed = match ended {
        Ended::Exit(code) => code != 0,
        Ended::Signal(_) => true,
        Ended::TimeLimit | Ended::Interrupted => false,
    };
    let is_watched = process.torch.as_ref().is_some_and(|torch| torch.failures_watched);
    request.then == Then::Nothing
        && match request.library.as_str() {
            PYTORCH => !is_watched,
            library if ALLOCATORS.contains(&library) => failed,
            _ => true,
        }
}

/// Returns whether a statically linked CUDA runtime may make the process's figures incomplete.
/// PyTorch links its runtime dynamically, so figures that PyTorch reported are complete.
fn is_static(process: &Process) -> bool {
    let torch = process.torch.as_ref();
    !static_runtimes(process).is_empty() && torch.is_none_or(|torch| torch.devices.is_empty())
}

/// Returns the libraries with a statically linked CUDA runtime. Such a runtime needs the driver's
/// private tables, and the emulated driver has none. So the runtime fails, and the library's memory
/// is not counted. Returns none if the program's Python modules take memory only from the driver,
/// as numba does.
pub(crate) fn static_runtimes(process: &Process) -> &[String] {
    let uses_driver = process.python.as_ref().is_some_and(|python| python.uses_driver);
    let driver = process.driver.as_ref().filter(|_| !uses_driver);
    driver.map_or(&[], |driver| &driver.export_tables)
}

/// Returns whether PyTorch ran without the Python hook, the code that chooses values in place of
/// kernels' results. The program then read 0 for each result. The interpreter loads no hook with
/// `-I`, `-S` and `-E`, and a C++ program has no hook.
pub(crate) fn has_hookless_pytorch(process: &Process) -> bool {
    let is_loaded = process.driver.as_ref().is_some_and(|driver| driver.has_pytorch);
    is_loaded && process.torch.is_none() && !device_results(process).is_empty()
}

/// Returns the figures of a process; `None` if it used no device.
fn process(process: &Process, ended: Ended) -> Option<ProcessResult> {
    let torch = process.torch.as_ref();
    let devices = device_results(process);
    let is_empty = devices.is_empty() && torch.is_none_or(|torch| torch.failed == 0);
    let refused = process.driver.as_ref().map_or(0, |driver| driver.out_of_memory);
    (!is_empty || refused > 0).then(|| ProcessResult {
        pid: process.pid,
        rank: torch.and_then(|torch| torch.rank.clone()),
        torch: torch.map(|torch| torch.torch.clone()),
        steps: torch.map_or(0, |torch| torch.steps),
        devices,
        failures: torch.map(|torch| torch.failures.clone()).unwrap_or_default(),
        refused: refusals(process, ended),
        failed: torch.map(|torch| torch.failed).filter(|&failed| failed > 0).unwrap_or(refused),
    })
}

fn device_results(process: &Process) -> Vec<DeviceResult> {
    let of_driver = process.driver.iter().flat_map(|driver| &driver.devices);
    let mut found: Vec<DeviceResult> = (0..)
        .zip(of_driver)
        .map(|(device, figures)| DeviceResult {
            device,
            number: figures.number.unwrap_or(device),
            in_use: Some(figures.peak_in_use),
            managed: Some(figures.peak_managed),
            demand: Some(figures.peak_demand),
            ..DeviceResult::default()
        })
        .collect();
    for figures in process.torch.iter().flat_map(|torch| &torch.devices) {
        let known = found.iter().position(|one| one.device == figures.device);
        let at = known.unwrap_or_else(|| {
            let (device, number) = (figures.device, figures.device);
            found.push(DeviceResult { device, number, ..DeviceResult::default() });
            found.len() - 1
        });
        let has_steps = process.torch.as_ref().is_some_and(|torch| torch.steps > 0);
        found[at] = DeviceResult {
            requested: Some(figures.requested),
            allocated: Some(figures.allocated),
            reserved: Some(figures.reserved),
            allocations: Some(figures.allocations),
            step: has_steps.then_some(figures.step),
            ..found[at].clone()
        };
    }
    // Drops the devices that the process did not open. They have no memory in use.
    found.retain(|one| one.in_use.is_some_and(|bytes| bytes > 0) || one.reserved.is_some());
    found
}

/// Returns the refused requests. Sets `is_decisive` of a request if the refusal means that memory
/// ran out.
fn refusals(process: &Process, ended: Ended) -> Vec<Refusal> {
    let judged = |refusal: &Refusal| Refusal {
        is_decisive: is_decisive(refusal, process, ended),
        ..refusal.clone()
    };
    process.driver.iter().flat_map(|driver| &driver.requests).map(judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::{Driver, DriverDevice, Python, Torch, TorchDevice};
    use crate::verdict::Failure;

    /// Returns the reports of a process in which `failed` requests of PyTorch failed, and the
    /// driver refused `refused` requests. If `went_on`, a step followed the last failure.
    fn with(failed: u64, went_on: bool, refused: usize) -> Vec<Process> {
        let request = Refusal { library: PYTORCH.to_owned(), ..Refusal::default() };
        vec![Process {
            torch: Some(Torch {
                failed,
                went_on,
                failures_watched: true,
                devices: vec![TorchDevice::default()],
                ..Torch::default()
            }),
            driver: Some(Driver { requests: vec![request; refused], ..Driver::default() }),
            ..Process::default()
        }]
    }

    #[test]
    fn outcome_is_of_the_last_failure() {
        let exits = |code, processes: &[Process]| outcome(Ended::Exit(code), processes);
        let failed = Outcome::NoVerdict(Reason::Failed);
        assert_eq!(exits(0, &with(0, false, 0)), Outcome::Fits);
        assert_eq!(exits(1, &with(0, false, 0)), failed);
        assert_eq!(outcome(Ended::Signal(11), &[]), failed);
        // In the next three checks, a request of PyTorch's allocator failed. Afterwards, the
        // program exits with an error, exits normally, or completes more steps.
        assert_eq!(exits(1, &with(1, false, 1)), Outcome::DoesNotFit);
        assert_eq!(exits(0, &with(1, false, 1)), Outcome::DoesNotFit);
        assert_eq!(exits(0, &with(2, true, 2)), Outcome::Fits);
        // After each refusal, PyTorch freed its cache and repeated the request.
        assert_eq!(exits(0, &with(0, false, 3)), Outcome::Fits);
        assert_eq!(exits(1, &with(0, false, 3)), failed);
    }

    #[test]
    fn refusal_decides_by_caller_and_followup() {
        let mut processes = with(0, false, 1);
        let outcomes =
            |processes: &[Process]| [0, 1].map(|code| outcome(Ended::Exit(code), processes));
        let failed = Outcome::NoVerdict(Reason::Failed);
        // The driver refused a request of PyTorch's allocator. The hook watches the allocator and
        // saw no failure, so the allocator served the request in the end.
        assert_eq!(outcomes(&processes), [Outcome::Fits, failed]);
        processes[0].torch.as_mut().unwrap().failures_watched = false;
        assert_eq!(outcomes(&processes), [Outcome::DoesNotFit; 2]);
        let mut of = |library: &str| {
            processes[0].driver.as_mut().unwrap().requests[0].library = library.to_owned();
            outcomes(&processes)
        };
        assert_eq!(of("librmm.so"), [Outcome::Fits, Outcome::DoesNotFit]);
        assert_eq!(of("a.out"), [Outcome::DoesNotFit; 2]);
        for then in [Then::Repeated, Then::Less] {
            processes[0].driver.as_mut().unwrap().requests[0].then = then;
            assert_eq!(outcomes(&processes), [Outcome::Fits, failed]);
        }
    }

    #[test]
    fn run_without_steps_proves_nothing() {
        let none = with(0, false, 0);
        let mut some = with(0, false, 0);
        some[0].torch.as_mut().unwrap().steps = 1;
        assert_eq!(outcome(Ended::TimeLimit, &none), Outcome::NoVerdict(Reason::NoStep));
        assert_eq!(outcome(Ended::TimeLimit, &some), Outcome::Fits);
        assert_eq!(outcome(Ended::Interrupted, &some), Outcome::NoVerdict(Reason::Interrupted));
        let ran_out = with(1, false, 1);
        assert_eq!(outcome(Ended::TimeLimit, &ran_out), Outcome::DoesNotFit);
    }

    #[test]
    fn process_without_gpu_proves_nothing() {
        let no_gpu = Outcome::NoVerdict(Reason::NoGpuUsed);
        assert_eq!(outcome(Ended::Exit(0), &[]), no_gpu);
        assert_eq!(outcome(Ended::Exit(0), &[Process::default()]), no_gpu);
    }

    #[test]
    fn static_runtime_counts_without_pytorchs_figures() {
        let mut processes = with(0, false, 0);
        processes[0].driver.as_mut().unwrap().export_tables.push("libcupy.so".to_owned());
        let no_verdict = Outcome::NoVerdict(Reason::StaticRuntime);
        assert_eq!(outcome(Ended::Exit(0), &processes), Outcome::Fits);
        processes[0].torch = None;
        assert_eq!(outcome(Ended::Exit(0), &processes), no_verdict);
        assert_eq!(outcome(Ended::Exit(1), &processes), no_verdict);
        processes[0].python = Some(Python { uses_driver: true, ..Python::default() });
        assert_ne!(outcome(Ended::Exit(0), &processes), no_verdict);
    }

    #[test]
    fn hang_and_absurd_request_prove_nothing() {
        let mut processes = with(0, false, 0);
        processes[0].torch.as_mut().unwrap().hang = Some("a.py:3 in wait".to_owned());
        assert_eq!(outcome(Ended::Exit(3), &processes), Outcome::NoVerdict(Reason::Hang));
        let mut processes = with(1, false, 1);
        let failure = Failure { is_absurd: true, ..Failure::default() };
        processes[0].torch.as_mut().unwrap().failures = vec![Failure::default(), failure];
        let absurd = Outcome::NoVerdict(Reason::AbsurdRequest);
        assert_eq!(outcome(Ended::Exit(1), &processes), absurd);
        processes[0].torch.as_mut().unwrap().failures.pop();
        assert_eq!(outcome(Ended::Exit(1), &processes), Outcome::DoesNotFit);
    }

    #[test]
    fn hookless_pytorch_fits_as_far_known() {
        let mut processes = with(0, false, 0);
        let driver = processes[0].driver.as_mut().unwrap();
        driver.has_pytorch = true;
        driver.devices = vec![DriverDevice { peak_in_use: 1, ..DriverDevice::default() }];
        assert_eq!(outcome(Ended::Exit(0), &processes), Outcome::Fits);
        processes[0].torch = None;
        assert_eq!(outcome(Ended::Exit(0), &processes), Outcome::FitsAsFarAsKnown);
    }

    #[test]
    fn size_read_fits_as_far_known() {
        let mut processes = with(0, false, 0);
        processes[0].torch.as_mut().unwrap().sizes = vec![Default::default()];
        assert_eq!(outcome(Ended::Exit(0), &processes), Outcome::FitsAsFarAsKnown);
    }
}
