//! How do I aggregate a table by group that is larger than GPU memory?
//!
//! Sums and means of columns, by group, of data ten times as large as the memory for it.
//!
//!     cargo run --bin group_sums
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin group_sums

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use gpuheap::ndarray::{Array1, Array2, Axis};
use gpuheap::{Device, DeviceArray, Error, Heap};

const ROWS: usize = 1 << 20;
const COLUMNS: usize = 3;
const GROUPS: usize = 5;

fn main() -> Result<(), Error> {
    // A table on the host: three columns of numbers, and a key for each row.
    let values = Array2::from_shape_fn((ROWS, COLUMNS), |(row, column)| {
        (row % 7 * (row % GROUPS) + column) as f64
    });
    let keys = Array1::from_shape_fn(ROWS, |row| (row % GROUPS) as u8);
    let bytes = (values.len() * size_of::<f64>() + keys.len()) as u64;

    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    let heap = Heap::builder(&device).hard_limit(bytes / 10).build()?;
    let target = heap.target()?;
    println!("{} KiB of data under a limit of {} KiB", bytes >> 10, (bytes / 10) >> 10);

    // What stays on the device: a sum for each group and column, and a count for each group.
    let mut sums: DeviceArray<f64, _> = target.zeroed((GROUPS, COLUMNS))?;
    let mut counts: DeviceArray<u64> = target.zeroed(GROUPS)?;

    // A batch is a range of rows with its keys, a third of the limit, to leave room for the sums.
    let rows = ROWS.div_ceil(30);
    let tables = values.axis_chunks_iter(Axis(0), rows);
    let with_keys = tables.zip(keys.axis_chunks_iter(Axis(0), rows));
    let mut batches = 0;
    for batch in target.batches(with_keys) {
        let (table, keys) = batch?;
        sums.add_assign(table.sum_by_key(&keys, GROUPS)?)?;
        counts.add_assign(keys.count_by_key(GROUPS)?)?;
        batches += 1;
    }
    println!("{batches} batches, {} KiB at most", heap.usage()?.reserved_peak >> 10);

    // A column of counts beside three columns of sums: the shapes go together.
    let columns = counts.cast::<f64>()?;
    let means = (&sums / columns.reshape((GROUPS, 1))?)?;

    println!("\ngroup    rows   sums of the columns            means");
    let (sums, means, counts) = (sums.to_ndarray()?, means.to_ndarray()?, counts.to_vec()?);
    for (group, count) in counts.iter().enumerate() {
        let [sum, mean] = [&sums, &means].map(|of| of.row(group).to_vec());
        print!("{group:>5} {count:>7}");
        sum.iter().for_each(|sum| print!(" {sum:>10.0}"));
        mean.iter().for_each(|mean| print!(" {mean:>7.4}"));
        println!();
    }

    // On the host, to compare with. The numbers are whole, so that the order of adding is no matter.
    let mut host = Array2::<f64>::zeros((GROUPS, COLUMNS));
    for (row, &key) in values.axis_iter(Axis(0)).zip(&keys) {
        let mut sum = host.row_mut(usize::from(key));
        sum += &row;
    }
    println!("\nthe same on the host: {}", host == sums);
    Ok(())
}
