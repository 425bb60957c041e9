//! Memory bandwidth of arithmetic, on `GPUHEAP_TEST_DEVICE` or, without that variable, on an
//! emulated device: `cargo bench -p gpuheap --bench arithmetic`.
//!
//! Each line has the bytes that an operation reads and writes, divided by the time between two
//! events around it, and the ratio to a device-to-device copy in the same run. The time is the
//! median of 11. Arrays have 256 MiB; on an emulated device 1 MiB, with figures that mean nothing.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]
#![expect(clippy::print_stdout, reason = "its figures")]

use gpuheap::arithmetic::Number;
use gpuheap::{Device, Error, Target};
use ndarray::s;

const RUNS: usize = 11;

fn main() {
    let device = match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => Device::open("emulated:4GiB").unwrap(),
    };
    let bytes = if device.is_emulated() { 1 << 20 } else { 256 << 20 };
    println!("{device}, arrays of {bytes} bytes, {RUNS} runs");
    let target = device.heap().unwrap().target().unwrap();
    elements::<f32, f64>(&target, bytes, 2.0).unwrap();
    elements::<i8, i16>(&target, bytes, 2).unwrap();
    elements::<f64, f32>(&target, bytes, 2.0).unwrap();
    elements::<i32, i64>(&target, bytes, 2).unwrap();
    elements::<i64, i32>(&target, bytes, 2).unwrap();
}

/// Runs all operations with one type, and a cast to another.
fn elements<T: Number, U: Number>(target: &Target, bytes: usize, two: T) -> Result<(), Error> {
    let count = bytes / size_of::<T>();
    let columns = 1024;
    let shape = (count / columns, columns);
    let a = target.filled(shape, two)?;
    let mut b = target.filled(shape, two)?;
    let name = std::any::type_name::<T>();
    let line =
        |what: &str, passes: f64, copy: Option<f64>, run: &mut dyn FnMut() -> Result<(), Error>| {
            let rate = rate(target, passes * bytes as f64, run)?;
            let ratio = rate / copy.unwrap_or(rate);
            println!("{name:4} {what:18} {rate:8.1} GB/s {ratio:6.2}");
            Ok::<f64, Error>(rate)
        };
    let copy = Some(line("copy", 2.0, None, &mut || b.copy_from(&a))?);
    let (one, wider) = (1.0 / size_of::<T>() as f64, size_of::<U>() as f64 / size_of::<T>() as f64);
    line("a + b", 3.0, copy, &mut || (&a + &b).map(drop))?;
    line("a * 2", 2.0, copy, &mut || (&a * two).map(drop))?;
    line("a.div_assign(b)", 3.0, copy, &mut || b.div_assign(&a))?;
    let part = a.index(0)?;
    line("a + row", 2.0, copy, &mut || (&a + &part).map(drop))?;
    line("a.less(b)", 2.0 + one, copy, &mut || a.less(&b).map(drop))?;
    line("a.less(2)", 1.0 + one, copy, &mut || a.less(two).map(drop))?;
    line("a.cast()", 1.0 + wider, copy, &mut || a.cast::<U>().map(drop))?;
    let flat = a.reshape((1, count))?;
    line("sum of all", 1.0, copy, &mut || flat.sum_axis(1).map(drop))?;
    line("sum of rows", 1.0, copy, &mut || a.sum_axis(1).map(drop))?;
    line("sum of columns", 1.0, copy, &mut || a.sum_axis(0).map(drop))?;
    line("max of all", 1.0, copy, &mut || flat.max_axis(1).map(drop))?;
    line("every other column", 1.5, copy, &mut || a.copy_slice(s![.., ..;2]).map(drop))?;
    line("transposed", 2.0, copy, &mut || a.copy_transposed().map(drop))?;
    for groups in [16, 4096] {
        let keys: Vec<u32> =
            (0..shape.0 as u32).map(|row| row.wrapping_mul(7919) % groups).collect();
        let keys = target.array(&keys)?;
        let what = format!("rows in {groups} groups");
        line(&what, 1.0, copy, &mut || a.sum_by_key(&keys, groups as usize).map(drop))?;
    }
    let keys: Vec<u16> =
        (0..count as u32).map(|at| (at.wrapping_mul(7919) % 1000) as u16).collect();
    let (keys, values) = (target.array(&keys)?, a.reshape(count)?);
    let both = 1.0 + 2.0 * one;
    line("in 1000 groups", both, copy, &mut || values.sum_by_key(&keys, 1000).map(drop))?;
    Ok(())
}

/// Returns bytes per nanosecond: the median of runs after two that load kernels and take memory.
fn rate(
    target: &Target,
    bytes: f64,
    run: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let stream = target.stream();
    let mut times = Vec::new();
    for nth in 0..RUNS + 2 {
        stream.synchronize()?;
        let start = stream.record_timed()?;
        run()?;
        let end = stream.record_timed()?;
        end.synchronize()?;
        if nth >= 2 {
            times.push(end.elapsed_since(&start)?);
        }
    }
    times.sort_unstable();
    // On an emulated device an operation may take no time at all.
    Ok(bytes / times[RUNS / 2].as_nanos().max(1) as f64)
}
