// Shows what the kernel has drawn ahead as soon as a control gets there. The kernel's own answer follows, and is equal.
const REST = 40; // milliseconds that the pointer stays over one value before it is asked for
const key = (value) => (typeof value === "number" ? value.toFixed(6) : JSON.stringify(value));
const state = (control) => control.get("index") ?? control.get("value");

// What a press on the slider's track at this place would choose.
const pointed = (control, track, { clientX }) => {
  const { left, width } = track.getBoundingClientRect();
  const choices = control.get("_options_labels");
  const [low, high, step] = choices ? [0, choices.length - 1, 1] : ["min", "max", "step"].map((of) => control.get(of));
  const share = Math.min(Math.max((clientX - left) / width, 0), 1);
  return Math.min(low + step * Math.round((share * (high - low)) / step), high);
};

function initialize({ model }) {
  const controls = {}, places = {}, frames = new Map(), tracks = new Map();
  let generation = 0, base = {}, resting = null, asked = "";

  const show = (name) => {
    const shows = frames.get(name + key(state(controls[name])));
    const others = Object.entries(base).filter(([other]) => other !== name);
    if (!shows || others.some(([other, value]) => key(state(controls[other])) !== key(value))) return;
    for (const [place, html] of Object.entries(shows)) places[place].set_state({ value: html });
  };

  // A reader aims before they press, so what they aim at is asked for meanwhile.
  const aim = (name, value) => {
    if (frames.has(name + key(value)) || key(value) === key(state(controls[name]))) return;
    model.send({ name, state: value });
  };
  const point = async (event) => {
    const track = event.target.closest?.(".noUi-base");
    if (!track || event.buttons) return;
    if (!tracks.has(track)) {
      tracks.set(track, "");
      for (const [name, control] of Object.entries(controls))
        for (const view of await Promise.all(Object.values(control.views ?? {})))
          if (view.el.contains(track)) tracks.set(track, name);
    }
    const name = tracks.get(track);
    if (!name) return;
    const value = pointed(controls[name], track, event);
    if (asked === name + key(value)) return;
    asked = name + key(value);
    clearTimeout(resting);
    resting = setTimeout(aim, REST, name, value);
  };

  const connect = async () => {
    for (const [name, id] of Object.entries(model.get("places"))) places[name] = await model.widget_manager.get_model(id);
    for (const [name, id] of Object.entries(model.get("controls"))) {
      controls[name] = await model.widget_manager.get_model(id);
      controls[name].on("change", () => show(name));
    }
    model.on("msg:custom", (message) => {
      if (message.generation !== generation) {
        frames.clear();
        asked = "";
      }
      ({ generation, base } = message);
      if (message.shows) frames.set(message.name + key(message.value), message.shows);
    });
    document.addEventListener("pointermove", point);
  };
  connect().catch(() => {}); // a page without these widgets has nothing to show ahead
  return () => document.removeEventListener("pointermove", point);
}

export default { initialize };
