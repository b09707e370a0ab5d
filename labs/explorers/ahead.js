// Shows what the kernel has drawn ahead as soon as a control gets there. The kernel's own answer follows, and is equal.
const key = (value) => (typeof value === "number" ? value.toFixed(6) : JSON.stringify(value));
const state = (control) => control.get("index") ?? control.get("value");

function initialize({ model }) {
  const controls = {}, places = {}, frames = new Map();
  let news = { generation: 0, name: "", base: {} };

  const show = (name) => {
    const shows = name === news.name && frames.get(key(state(controls[name])));
    const others = Object.entries(news.base).filter(([other]) => other !== name);
    if (!shows || others.some(([other, value]) => key(state(controls[other])) !== key(value))) return;
    for (const [place, html] of Object.entries(shows)) places[place].set_state({ value: html });
  };

  const connect = async () => {
    for (const [name, id] of Object.entries(model.get("places"))) places[name] = await model.widget_manager.get_model(id);
    for (const [name, id] of Object.entries(model.get("controls"))) {
      controls[name] = await model.widget_manager.get_model(id);
      controls[name].on("change", () => show(name));
    }
    model.on("msg:custom", (message) => {
      if (message.generation !== news.generation) frames.clear();
      news = message;
      if (message.shows) frames.set(key(message.value), message.shows);
    });
  };
  connect().catch(() => {}); // a page without these widgets has nothing to show ahead
}

export default { initialize };
