//! A fork without exec: the child gets a clear error, the parent goes on. A target of its own,
//! because no other thread may run tests meanwhile.
#![cfg(unix)]

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Error, Heap};

fn says_so(error: &Error) -> bool {
    let text = error.to_string();
    text.contains("forked off after the device was opened") && text.contains("exec")
}

#[test]
fn a_forked_child_gets_an_error_and_the_parent_goes_on() {
    let device = match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => {
            let options = Options::with_device(Profile::with_memory(1 << 30));
            let options = Options { schedule: Schedule::OnDemand, ..options };
            Device::emulated_with(options).unwrap()
        }
    };
    let stream = device.stream().unwrap();
    let heap = Heap::new(&device).unwrap();
    let live = heap.allocate(1 << 20, &stream).unwrap();
    let event = stream.record().unwrap();
    let calls = device.emulator().map(|emulator| emulator.calls());

    // SAFETY: this process has no thread that holds a lock the child needs: the test harness's own
    // thread waits for this one. The child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match () {
            () if !heap.allocate(64 << 20, &stream).is_err_and(|error| says_so(&error)) => 1,
            () if !device.synchronize().is_err_and(|error| says_so(&error)) => 2,
            () if !device.stream().is_err_and(|error| says_so(&error)) => 3,
            () if !event.is_done().is_err_and(|error| says_so(&error)) => 4,
            // SAFETY: it is refused before anything is done.
            () if !unsafe { device.clone().reset() }.is_err_and(|error| says_so(&error)) => 5,
            // A real device that the parent had open cannot be had, not even by its name.
            () if !device.is_emulated()
                && !Device::open(device.name()).is_err_and(|error| says_so(&error)) =>
            {
                6
            }
            // An emulated one is as good as any other.
            () if Device::open("emulated").and_then(|own| own.synchronize()).is_err() => 7,
            () => 0,
        };
        // Destructors make no driver call: on the emulator it is counted.
        let emulator = device.emulator().cloned();
        drop((live, event, stream, heap, device));
        let code = if emulator.map(|emulator| emulator.calls()) == calls { code } else { 8 };
        // SAFETY: ends the child without running what the parent registered for its own end.
        unsafe { libc::_exit(code) }
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the pointer is valid for the call, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child ended by a signal: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "see the child's list");

    assert!(event.is_done().is_ok());
    drop(live);
    let block = heap.allocate(64 << 20, &stream).unwrap();
    drop((block, event));
    stream.synchronize().unwrap();
    heap.reclaim_all().unwrap();
    assert_eq!(heap.usage().unwrap().reserved, 0);
    if let Some(emulator) = device.emulator() {
        assert_eq!(emulator.findings(), []);
    }
}
