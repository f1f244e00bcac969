mod chaos;
mod golden;
mod storm;
mod theory;
