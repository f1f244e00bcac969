//! Finds operations that wait for each other.
//!
//! Each operation has two events, its begin and its end. All that it requires comes before its begin, its begin before its end, and the begin of a send
//! before the end of its receive. The end of a send waits for nothing else: its message is kept until the receive begins.

use super::schedule::{Op, Place, Schedule};

/// The begin or the end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    at: Place,
    is_end: bool,
}

/// A value for each event.
struct Each<T>(Vec<Vec<[T; 2]>>);

impl<T: Copy> Each<T> {
    fn new(schedule: &Schedule, value: impl Fn(Event) -> T) -> Self {
        let events = |at| [false, true].map(|is_end| value(Event { at, is_end }));
        let of =
            |rank| (0..schedule.len(rank)).map(move |op| Place { rank, op }).map(events).collect();
        Self((0..schedule.ranks()).map(of).collect())
    }

    fn at(&mut self, event: Event) -> &mut T {
        &mut self.0[event.at.rank as usize][event.at.op as usize][usize::from(event.is_end)]
    }
}

/// Operations, each of them waiting for the next; `None` if all can be done.
pub(super) fn find(schedule: &Schedule) -> Option<Vec<Place>> {
    let mut missing = Each::new(schedule, |event| match (event.is_end, op(schedule, event.at)) {
        (false, _) => schedule.requirements(event.at.rank)[event.at.op as usize],
        (true, Op::Receive { .. }) => 2,
        (true, _) => 1,
    });
    let mut free: Vec<Event> = all(schedule).filter(|event| *missing.at(*event) == 0).collect();
    while let Some(event) = free.pop() {
        after(schedule, event, |next| {
            let missing = missing.at(next);
            *missing -= 1;
            if *missing == 0 {
                free.push(next);
            }
        });
    }
    // Each of the others waits for one of the others.
    let first = all(schedule).find(|event| *missing.at(*event) > 0)?;
    let mut waits: Each<Option<Event>> = Each::new(schedule, |_| None);
    for event in all(schedule).filter(|event| *missing.at(*event) > 0) {
        after(schedule, event, |next| *waits.at(next) = Some(event));
    }
    // After as many steps as there are events the walk is in the circle.
    let mut event = first;
    for _ in all(schedule) {
        event = (*waits.at(event))?;
    }
    let mut circle = vec![event];
    while let Some(found) = *waits.at(circle[circle.len() - 1])
        && found != event
    {
        circle.push(found);
    }
    let mut places: Vec<Place> = circle.iter().map(|event| event.at).collect();
    // The smallest one first, so that the text does not depend on where the walk began; then the end and the begin of one are neighbours in the list.
    let smallest = (0..places.len()).min_by_key(|index| places[*index]).unwrap_or(0);
    places.rotate_left(smallest);
    places.dedup();
    if places.len() > 1 && places.first() == places.last() {
        places.pop();
    }
    Some(places)
}

fn op(schedule: &Schedule, at: Place) -> Op {
    schedule.ops(at.rank)[at.op as usize]
}

fn all(schedule: &Schedule) -> impl Iterator<Item = Event> {
    let of_rank = |rank| (0..schedule.len(rank)).map(move |op| Place { rank, op });
    let places = (0..schedule.ranks()).flat_map(of_rank);
    places.flat_map(|at| [false, true].map(|is_end| Event { at, is_end }))
}

/// Calls a function with all events that wait for one.
fn after(schedule: &Schedule, event: Event, mut call: impl FnMut(Event)) {
    let Event { at: Place { rank, op: index }, is_end } = event;
    for (op, waits_for_start) in schedule.followers(rank, index) {
        if waits_for_start != is_end {
            call(Event { at: Place { rank, op }, is_end: false });
        }
    }
    if is_end {
        return;
    }
    call(Event { at: event.at, is_end: true });
    if let (Op::Send { to, .. }, Some(op)) = (op(schedule, event.at), schedule.partner(rank, index))
    {
        call(Event { at: Place { rank: to, op }, is_end: true });
    }
}
