//! How do I aggregate a table by group that is larger than GPU memory?
//!
//! Sums two tables. For each, the heap's limit is a fraction of the table's size.
//!
//! * Few groups: the sums of all groups stay on the device, and batches of rows are added to them.
//! * A million rows whose float keys are nearly all different: the table of sums is as large as the
//!   data, so the batches are ranges of groups. The host sorts the rows by key, and gives each
//!   group a number.
//!
//! On the emulated device, and on a GPU:
//!
//!     cargo run --bin group_sums
//!     GPUHEAP_DEVICE=cuda:0 cargo run --bin group_sums

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;

use gpuheap::ndarray::{Array1, Array2, Axis};
use gpuheap::{Device, DeviceArray, Error, Heap};

const ROWS: usize = 1 << 20;
const COLUMNS: usize = 3;
const GROUPS: usize = 5;

fn main() -> Result<(), Error> {
    let device =
        Device::open(std::env::var("GPUHEAP_DEVICE").as_deref().unwrap_or("emulated:4GiB"))?;
    few_groups(&device)?;
    float_keys(&device)
}

fn few_groups(device: &Device) -> Result<(), Error> {
    // The table is on the host. It has three columns of numbers, and a key for each row.
    let values = Array2::from_shape_fn((ROWS, COLUMNS), |(row, column)| {
        (row % 7 * (row % GROUPS) + column) as f64
    });
    let keys = Array1::from_shape_fn(ROWS, |row| (row % GROUPS) as u8);
    let bytes = (values.len() * size_of::<f64>() + keys.len()) as u64;

    let heap = Heap::builder(device).hard_limit(bytes / 10).build()?;
    let target = heap.target()?;
    println!("{} KiB of data under a limit of {} KiB", bytes >> 10, (bytes / 10) >> 10);

    // The device keeps a sum for each group and column, and a count for each group.
    let mut sums: DeviceArray<f64, _> = target.zeroed((GROUPS, COLUMNS))?;
    let mut counts: DeviceArray<u64> = target.zeroed(GROUPS)?;

    // The limit is 1/10 of the table. A batch takes a third of it, to leave room for the sums.
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

    // Divides three columns of sums by one column of counts: the shapes broadcast.
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

    // Computes the sums on the host too. Whole numbers have the same sum in any order.
    let mut host = Array2::<f64>::zeros((GROUPS, COLUMNS));
    for (row, &key) in values.axis_iter(Axis(0)).zip(&keys) {
        let mut sum = host.row_mut(usize::from(key));
        sum += &row;
    }
    println!("\nthe same on the host: {}", host == sums);
    Ok(())
}

fn float_keys(device: &Device) -> Result<(), Error> {
    const MIB: u64 = 1 << 20;
    const BATCH: usize = ROWS / 32;

    let keys: Vec<f64> =
        (0..ROWS).map(|row| (row * 7919 % (ROWS / 100 * 99)) as f64 / 3.0).collect();
    let values: Vec<f64> = (0..ROWS).map(|row| (row % 1000) as f64).collect();

    // Sorts the rows by key, so that a group is a range of rows.
    let mut order: Vec<usize> = (0..ROWS).collect();
    order.sort_unstable_by(|&a, &b| keys[a].total_cmp(&keys[b]));

    let heap = Heap::builder(device).hard_limit(3 * MIB).build()?;
    let target = heap.target()?;
    let mut groups: Vec<f64> = Vec::new(); // the key of each group
    let mut sums: Vec<f64> = Vec::new();
    let (mut first, mut batches) = (0, 0);
    while first < ROWS {
        // Extends the batch to the end of its last row's group, so that no group is split.
        let mut end = ROWS.min(first + BATCH);
        while end < ROWS && keys[order[end]] == keys[order[end - 1]] {
            end += 1;
        }
        let rows = &order[first..end];

        // Numbers each row's group within the batch.
        let before = groups.len();
        let numbers: Vec<u32> = rows
            .iter()
            .map(|&row| {
                if groups.len() == before || groups.last() != Some(&keys[row]) {
                    groups.push(keys[row]);
                }
                (groups.len() - before - 1) as u32
            })
            .collect();
        let column: Vec<f64> = rows.iter().map(|&row| values[row]).collect();

        let batch =
            target.array(&column)?.sum_by_key(&target.array(&numbers)?, groups.len() - before)?;
        sums.extend(batch.to_vec()?);
        (first, batches) = (end, batches + 1);
    }
    println!(
        "\n{ROWS} rows, {} float keys, under a limit of {} KiB",
        groups.len(),
        (3 * MIB) >> 10
    );
    println!("{batches} batches, {} KiB at most", heap.usage()?.reserved_peak >> 10);

    let mut host: HashMap<u64, f64> = HashMap::new();
    for (key, value) in keys.iter().zip(&values) {
        *host.entry(key.to_bits()).or_default() += value;
    }
    let is_equal = groups.iter().zip(&sums).all(|(key, sum)| host.get(&key.to_bits()) == Some(sum));
    println!("the same on the host: {}", host.len() == groups.len() && is_equal);
    Ok(())
}
