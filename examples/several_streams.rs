//! How do I use several streams without two of them using the same memory at once?
//!
//! Runs work on several streams. If a stream needs another stream's result, it waits for that
//! stream. Otherwise the streams run at the same time.
//!
//!     cargo run --bin several_streams
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin several_streams

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::{Device, DeviceArray, Error};

/// Elements of each array.
const LENGTH: usize = 4 << 20;

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    let heap = device.heap()?;
    let (first, second) = (device.stream()?, device.stream()?);

    // 1. The host waits for nothing here. On the device, the copy on the second stream waits until
    //    the first stream has filled the array.
    let begin = second.record_timed()?;
    let a = heap.on(&first).filled(LENGTH, 1.5_f32)?;
    let b = a.copy_to(&heap.on(&second))?;
    // 2. The free comes after the copy. No event is needed, because an array records its last use.
    drop(a);
    let end = second.record_timed()?;
    println!("the copy holds {:?}", &b.slice(..3)?.to_vec()?); // this waits
    end.synchronize()?;
    println!("fill and copy took {:?} of the device's time", end.elapsed_since(&begin)?);

    // 3. Another stream reuses memory that the first stream freed, and waits for an event first. No
    //    memory is taken from the driver.
    let meter = heap.meter()?;
    let c = heap.on(&first).filled(LENGTH, 2.5_f32)?;
    let taken = meter.read()?.taken;
    println!("an array on the other stream took {taken} bytes from the driver");
    drop((b, c));

    // 4. Threads that run at the same time use a stream each. Any thread may use their arrays.
    let threads: Vec<_> = (0..4_u32)
        .map(|number| {
            let (device, heap) = (device.clone(), heap.clone());
            std::thread::spawn(move || -> Result<DeviceArray<u32>, Error> {
                let mut array = heap.on(&device.stream()?).zeroed(LENGTH)?;
                for round in 0..10 {
                    array.fill(number * 100 + round)?;
                }
                Ok(array) // its stream may have ended: the heap handles that
            })
        })
        .collect();
    for thread in threads {
        let array = thread.join().expect("no thread panics")?;
        // This thread reads after the work that the other thread enqueued.
        let seen = array.slice(LENGTH - 1..)?.to_vec()?;
        println!("a thread's last element: {}", seen[0]);
    }

    // 5. For other libraries: one stream waits for a recorded point of another.
    let point = first.record()?;
    second.wait(&point)?; // the host goes on
    device.synchronize()?; // and waits for everything here
    println!("both streams are done: {}", first.is_done()? && second.is_done()?);
    println!("live at the end: {} bytes", heap.usage()?.live);
    Ok(())
}
